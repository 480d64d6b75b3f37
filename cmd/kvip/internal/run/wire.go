package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/cmd/kvip/internal/admin"
	"github.com/kvip/kvip/cmd/kvip/internal/config"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/discovery/provider"
	"github.com/kvip/kvip/protocol/front"
)

// vip is one listener with its section of the configuration.
type vip struct {
	cfg    config.VIP
	pool   *backends.Pool
	server *front.Server
}

// build makes everything that cfg names, and binds the listeners' addresses; no client is served yet.
func (p *process) build() error {
	if err := os.MkdirAll(p.cfg.StateDir, 0o750); err != nil {
		return fmt.Errorf("state_dir: %w: create it for kvip's user, or name another", err)
	}
	unlock, err := lockState(p.cfg.StateDir, p.log)
	if err != nil {
		return err
	}
	p.unlockState = unlock
	if err := p.buildPools(); err != nil {
		return err
	}
	p.admin = admin.New(admin.Config(p.cfg.Admin), p, p.registry, p.log.Named("admin"))
	if err := p.admin.Listen(p.leaving); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	for i, vc := range p.cfg.VIPs {
		v, err := p.buildVIP(vc, p.budget.caps[i])
		if err != nil {
			return err
		}
		p.vips = append(p.vips, v)
	}
	return p.buildRegister()
}

// buildRegister makes the registration of the VIPs, if the configuration wants it.
func (p *process) buildRegister() error {
	if p.cfg.Register.Service == "" {
		return nil
	}
	var entries []provider.SelfEntry
	for _, v := range p.vips {
		entries = append(entries, provider.SelfEntry{
			Name: v.cfg.Name, Pool: v.cfg.Pool, Listen: v.server.Addr,
			Ready: func() (bool, string) { s := v.status(); return s.Ready, s.Reason },
		})
	}
	var err error
	p.register, err = provider.NewSelfRegistration(p.cfg.Register, provider.Deps{Consul: p.cfg.Consul, Log: p.log.Named("register")}, entries)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}

// buildPools makes the pools and the descriptor budget. Where the limit of open files is small, pools get fewer
// connections for forwards, so that most of the limit is left for clients.
func (p *process) buildPools() error {
	limit, err := openFilesLimit()
	if err != nil {
		return err
	}
	for halvings := 0; ; halvings++ {
		p.registry = newRegistry(p.version)
		p.pools = nil
		n := needs{loops: runtime.GOMAXPROCS(0), vips: p.cfg.VIPs}
		var lowered []string
		least := true
		for _, pc := range p.cfg.Pools {
			most := max(pc.MaxUpstream>>halvings, 1)
			least = least && most == 1
			if most < pc.MaxUpstream {
				lowered = append(lowered, fmt.Sprintf("pool %s: max_upstream is %d instead of %d, for the limit of open files is %d", pc.Name, most, pc.MaxUpstream, limit))
			}
			pool, err := p.buildPool(pc, most)
			if err != nil {
				return fmt.Errorf("pool %s: %w", pc.Name, err)
			}
			p.pools = append(p.pools, pool)
			n.pools = append(n.pools, pool.Descriptors())
		}
		p.budget, err = divide(limit, n)
		if err == nil && p.budget.reserve <= limit/2 || least {
			p.poolReserve = p.descriptors()
			p.budget.warnings = append(p.budget.warnings, lowered...)
			return err
		}
	}
}

// newRegistry makes the process's metrics: the runtime's, the process's own, and which build it is.
func newRegistry(version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Name: "kvip_build_info", Help: "1, with the version of kvip and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}).Set(1)
	return reg
}

func (p *process) buildPool(c config.Pool, maxUpstream int) (*backends.Pool, error) {
	log := p.log.Named("pool").With(zap.String("pool", c.Name))
	var providers []discovery.Provider
	for i, source := range c.Discovery {
		deps := provider.Deps{Consul: p.cfg.Consul, ClusterID: c.ClusterID, Log: log}
		if len(c.Discovery) > 1 {
			deps.Name = fmt.Sprintf("%s-%d", source.Type, i+1)
		}
		prov, err := source.Provider.Build(deps)
		if err != nil {
			return nil, fmt.Errorf("discovery %s: %w", source.Type, err)
		}
		providers = append(providers, prov)
	}
	// Where brokers are registered in Consul, operators' orders are there, too.
	if c.Discovery.Consul() != nil {
		orders, err := provider.NewConsulOrders(c.Name, filepath.Join(p.cfg.StateDir, c.Name+".orders.json"), provider.Deps{Consul: p.cfg.Consul, Log: log})
		if err != nil {
			return nil, fmt.Errorf("discovery: orders: %w", err)
		}
		providers = append(providers, orders)
	}
	return backends.New(backends.Config{
		Name:         c.Name,
		ClusterID:    c.ClusterID,
		Standby:      c.Standby,
		Health:       backends.Health(c.Health),
		Policy:       c.Balancer.Policy,
		Heads:        c.Balancer.Heads,
		Zone:         c.Balancer.Zone,
		SlowStart:    cmp.Or(c.Balancer.SlowStart, -1), // 0 would mean the default
		Outliers:     backends.Outliers(c.Outliers),
		MaxAge:       c.Metadata.MaxAge,
		MaxStale:     c.Metadata.MaxStale,
		ShrinkHold:   c.Discovery.ShrinkHold(),
		StateDir:     p.cfg.StateDir,
		DialAllow:    c.DialAllow,
		VIPAddresses: ownAddresses(p.cfg.VIPs),
		MaxUpstream:  maxUpstream,
	}, providers, log, p.registry)
}

func (p *process) buildVIP(c config.VIP, connections int) (*vip, error) {
	v := &vip{cfg: c}
	i := slices.IndexFunc(p.cfg.Pools, func(pc config.Pool) bool { return pc.Name == c.Pool })
	if i < 0 {
		return nil, fmt.Errorf("no pool is named %q", c.Pool)
	}
	v.pool = p.pools[i]
	l := c.Limits
	limits := front.DefaultLimits()
	limits.FirstByte, limits.Frame, limits.Idle, limits.Stalled, limits.Hold = l.FirstByte, l.Frame, l.Idle, l.Stalled, l.Hold
	limits.FrameBytes, limits.InboundBytes, limits.OutboundBytes = int(l.FrameBytes), int(l.InboundBytes), int(l.OutboundBytes)
	limits.Tags, limits.BufferedBytes = l.Tags, int(l.BufferedBytes)
	server, err := front.New(front.Config{
		Name:          c.Name,
		Listen:        c.Listen,
		LookupForward: c.Lookup == "forward",
		ForwardWrites: c.Forward.Writes,
		SharePort:     c.SharePort,
		MaxConns:      connections,
		Limits:        limits,
	}, v.pool, p.log.Named("vip"), p.registry)
	v.server = server
	return v, err
}

// descriptors is what all pools may hold open with the members that they have now.
func (p *process) descriptors() int {
	sum := 0
	for _, pool := range p.pools {
		sum += pool.Descriptors()
	}
	return sum
}

// services are the parts with goroutines, in the order in which they start: operators see first, pools look for brokers
// next, and listeners are bound without waiting for a snapshot, so that clients are held instead of refused.
func (p *process) services() []*service {
	all := []*service{{
		name: "admin",
		run:  func(context.Context) error { return p.admin.Serve() },
		stop: p.admin.Shutdown,
	}}
	for i, pool := range p.pools {
		all = append(all, &service{name: "pool " + p.cfg.Pools[i].Name, run: pool.Run})
	}
	for _, v := range p.vips {
		all = append(all, &service{
			name:  fmt.Sprintf("vip %s on %s", v.cfg.Name, v.cfg.Listen),
			start: v.start,
			run:   func(context.Context) error { return v.server.Run() },
			stop:  v.server.Stop,
		})
	}
	if p.register != nil {
		all = append(all, &service{name: "register", run: p.register.Run})
	}
	return append(all, &service{name: "readiness", run: p.watchReadiness})
}

func (v *vip) start(ctx context.Context) error {
	select {
	case <-v.server.Booted():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// explainBind adds the way out to an address that cannot be bound.
func explainBind(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another process has it (ss -ltnp shows which): stop that one, or choose another port", err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface of this machine has it: choose one that ip addr shows, or 0.0.0.0", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: ports below 1024 need a privilege: choose a higher one, or give CAP_NET_BIND_SERVICE", err)
	}
	return err
}

// ownAddresses are all host:port at which clients may reach a VIP: no broker may be one of them.
func ownAddresses(vips []config.VIP) []string {
	own := map[string]bool{}
	for _, v := range vips {
		for _, a := range v.Addresses {
			own[a] = true
		}
		host, port, err := net.SplitHostPort(v.Listen)
		if err != nil || port == "0" {
			continue
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			own[v.Listen] = true
			continue
		}
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				own[net.JoinHostPort(n.IP.String(), port)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(own))
}

// Status implements admin.Source.
func (p *process) Status() admin.Status {
	st := admin.Status{
		PID: os.Getpid(), Version: p.version, Started: p.started, UptimeSeconds: time.Since(p.started).Seconds(),
		Admin:       p.admin.Addr(),
		Draining:    p.draining.Load(),
		Descriptors: admin.Descriptors{Limit: p.budget.limit, Reserve: p.budget.reserve},
		Warnings:    slices.Clone(p.budget.warnings),
		VIPs:        []admin.VIP{}, Pools: []backends.Status{},
	}
	if now := p.descriptors(); now > p.poolReserve {
		st.Warnings = append(st.Warnings, fmt.Sprintf("the pools have grown and may hold %d descriptors, %d more than were kept for them at the start: restart, so that the limit is divided anew", now, now-p.poolReserve))
	}
	if p.register != nil {
		st.Warnings = append(st.Warnings, p.register.Faults()...)
	}
	conditions := p.Conditions()
	st.Reason = admin.FirstFailing(conditions)
	st.Healthy = st.Reason == ""
	for _, v := range p.vips {
		vs := v.status()
		if vs.Connections*10 >= vs.Cap*9 {
			st.Warnings = append(st.Warnings, fmt.Sprintf("vip %s holds %d of %d connections: at the cap, resting ones make room for newcomers", vs.Name, vs.Connections, vs.Cap))
		}
		st.VIPs = append(st.VIPs, vs)
	}
	for _, pool := range p.pools {
		st.Pools = append(st.Pools, pool.Status())
	}
	return st
}

// Explain implements admin.Source.
func (p *process) Explain(client netip.AddrPort) []admin.Explanation {
	all := make([]admin.Explanation, 0, len(p.pools))
	for i, pool := range p.pools {
		e := admin.Explanation{Explanation: pool.Explain(client), LastCloses: []admin.Close{}}
		for _, v := range p.vips {
			if v.cfg.Pool == p.cfg.Pools[i].Name {
				if v.cfg.Lookup == "forward" {
					e.LookupForward = append(e.LookupForward, v.cfg.Name)
				}
				for _, c := range v.server.ClosesOf(client.Addr()) {
					e.LastCloses = append(e.LastCloses, admin.Close{VIP: v.cfg.Name, Closed: c, Meaning: admin.Meaning(c.Reason)})
				}
			}
		}
		slices.SortStableFunc(e.LastCloses, func(a, b admin.Close) int { return b.At.Compare(a.At) })
		all = append(all, e)
	}
	return all
}

// Conditions implements admin.Source: the rules by which a client could bootstrap at every VIP.
func (p *process) Conditions() []admin.Condition {
	leaving := admin.Condition{Name: "process", OK: true, Detail: "serving"}
	if p.draining.Load() {
		leaving.OK, leaving.Detail = false, "shutting down"
	}
	all := []admin.Condition{leaving}
	for _, v := range p.vips {
		c := admin.Condition{Name: "vip " + v.cfg.Name, Detail: "not bound yet"}
		if v.booted() {
			c.OK, c.Detail = true, "listens on "+v.server.Addr()
		}
		all = append(all, c)
	}
	for i, pool := range p.pools {
		if p.cfg.Pools[i].Standby {
			continue
		}
		ok, reason := pool.Ready()
		if ok {
			reason = "clients can bootstrap"
		}
		all = append(all, admin.Condition{Name: "pool " + p.cfg.Pools[i].Name, OK: ok, Detail: reason})
	}
	return all
}

func (v *vip) booted() bool {
	select {
	case <-v.server.Booted():
		return true
	default:
		return false
	}
}

func (v *vip) status() admin.VIP {
	s := admin.VIP{Status: v.server.Status(), Pool: v.cfg.Pool, Lookup: v.cfg.Lookup}
	if !v.booted() {
		s.Reason = "not bound yet"
		return s
	}
	s.Ready, s.Reason = v.pool.Ready()
	return s
}
