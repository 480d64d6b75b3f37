// Package backends keeps one pool of brokers: who is a member (registry and probe together), what the cluster looks like
// (a snapshot that a refresh confirms), what the brokers have in common, and who gets the next forwarded request.
//
// One goroutine writes; readers take an immutable view through an atomic pointer. Where to look:
//
//	pool.go       the exported Pool: parts, lifecycle, Answers
//	writer.go     the writing goroutine: membership and verdicts in, states out
//	member.go     one member: verdict to state, and the quarantines that only a look at all members shows
//	steer.go      outliers, trials, growing shares, the pool in need
//	publish.go    what readers get: forward targets, heads, the overlap of versions, ready answers
//	refresh.go    when the cluster is asked, and what an outcome changes
//	round.go      whom to ask and whom to believe; the rules for one answer are in package snapshot
//	observe.go    brokers that no registry lists but whose versions count (dial_allow)
//	forward.go    clients' requests: whom to ask next, shared flights; connections are in package upstream
//	persist.go    what is kept in state_dir, and when; store.go has the file
//	explain.go    which broker a client would get, and why
//	report.go     status, readiness, alarms; metrics.go reads them for Prometheus
package backends

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/backends/upstream"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
)

const (
	// maxUpstreamTotal bounds the connections that carry forwards, over all brokers of a pool.
	maxUpstreamTotal = 256
	// maxRefreshConns bounds the kept connections of refreshes: in a large pool each broker is asked too rarely to keep
	// one.
	maxRefreshConns = 32
	// reserveMembers is how many members are reckoned with before discovery has told.
	reserveMembers = 32
)

// Pool is one pool of brokers.
type Pool struct {
	cfg   Config
	log   *zap.Logger
	reg   prometheus.Registerer
	parts parts

	// view is what readers see; confirmed is when a broker last confirmed its snapshot, in snapshot.Time.
	view      atomic.Pointer[view]
	confirmed atomic.Int64
	clusterID atomic.Pointer[string]
	// report is what status shows of the writer's own business.
	report   atomic.Pointer[report]
	rejected []atomic.Uint64 // as snapshot.Reasons

	resolver  *probe.Resolver
	lists     probe.Lists
	watcher   *discovery.Watcher
	scheduler *healthcheck.Scheduler
	observer  *healthcheck.Scheduler
	forwards  *forwarder
	forwardUp *upstream.Pool
	refreshUp *upstream.Pool
	writer    *writer
	collector *collector
}

// parts are what tests replace.
type parts struct {
	now   func() snapshot.Time
	build func(answer.Input, *answer.Set) *answer.Set
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
}

// view is what the pool looks like at one moment. It is immutable, but for the members' own status pointers.
type view struct {
	generation uint64
	set        *answer.Set
	snapshot   *snapshot.Snapshot
	apis       *snapshot.APIs
	members    []*member
	// targets take new forwards; picker picks among them. forwardable are the same as the policy knows them.
	targets     []target
	forwardable []policy.Member
	picker      policy.Picker
	// heads may head a broker list; headPicker picks among them.
	heads      []policy.Member
	headPicker policy.Picker
	// sticky are those that connections may go on using, by address: the targets, and those that drain.
	sticky map[string]target
	// need says that fewer than half of the members pass; reserve are those that do not, for when the targets have failed.
	need    bool
	reserve []target
}

// target is a member that forwards may go to; failing says that its probe fails.
type target struct {
	addr, rack string
	failing    bool
}

// New makes a pool; it does nothing until Run but read its state file. Its metrics are registered with reg until Run
// returns.
func New(cfg Config, providers []discovery.Provider, log *zap.Logger, reg prometheus.Registerer) (*Pool, error) {
	return newPool(cfg, providers, log, reg, parts{})
}

func newPool(cfg Config, providers []discovery.Provider, log *zap.Logger, reg prometheus.Registerer, with parts) (*Pool, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if len(providers) == 0 {
		return nil, fmt.Errorf("pool %s: %w", cfg.Name, errNoProvider)
	}
	if log == nil {
		log = zap.NewNop()
	}
	if with.now == nil {
		with.now = snapshot.Now
	}
	if with.build == nil {
		with.build = answer.Build
	}
	if with.dial == nil {
		with.dial = new(net.Dialer).DialContext
	}
	p := &Pool{cfg: cfg, log: log, reg: reg, parts: with, rejected: make([]atomic.Uint64, len(snapshot.Reasons))}
	p.view.Store(&view{})
	p.report.Store(&report{maxAge: cfg.MaxAge})
	p.clusterID.Store(&cfg.ClusterID)
	dial := func(ctx context.Context, addr string) (net.Conn, error) { return with.dial(ctx, "tcp", addr) }
	p.forwardUp = upstream.New(upstream.Options{
		MaxConns: cfg.MaxUpstream, MaxTotal: maxUpstreamTotal, MaxAnswer: cfg.MaxAnswer, Dial: dial,
		Check: func(ctx context.Context, _ string, c *upstream.Conn) error {
			return checkCluster(ctx, c.RoundTrip, p.pinned())
		},
		// What comes after a client's bytes may be their doing; a connect and the check on it are not.
		Connected: func(addr string, err error) { p.writer.outliers.Connected(addr, err == nil) },
	})
	p.refreshUp = upstream.New(upstream.Options{
		MaxConns: 1, MaxTotal: maxRefreshConns, MaxAnswer: cfg.MaxAnswer, Idle: time.Minute, DialTimeout: dialTimeout, Dial: dial,
	})
	p.resolver = probe.NewResolver(nil)
	p.writer = newWriter(p)
	hc := healthcheck.Config{
		Interval: cfg.Health.Interval, Timeout: cfg.Health.Timeout, Rise: cfg.Health.Rise, Fall: cfg.Health.Fall,
	}
	p.scheduler = healthcheck.New(hc, func(e healthcheck.Event) { p.writer.post(e) })
	hc.Interval *= observeEvery
	p.observer = healthcheck.New(hc, func(e healthcheck.Event) { p.writer.post(e) })
	p.forwards = newForwarder(p.forwardUp, p.view.Load, p.scheduler.Nudge)
	var err error
	p.watcher, err = discovery.NewWatcher(discovery.WatchConfig{
		ShrinkHold: cfg.ShrinkHold, Probe: p.probeState, Restore: p.writer.restored(), Log: log,
	}, providers)
	if err != nil {
		return nil, fmt.Errorf("pool %s: %w", cfg.Name, err)
	}
	p.collector = newCollector(p)
	if reg != nil {
		if err := reg.Register(p.collector); err != nil {
			return nil, fmt.Errorf("pool %s: metrics: %w", cfg.Name, err)
		}
	}
	return p, nil
}

// probeState tells discovery what the pool's own probe says about a member.
func (p *Pool) probeState(addr string) discovery.ProbeState {
	switch p.scheduler.State(addr) {
	case healthcheck.Up:
		return discovery.Passing
	case healthcheck.Down:
		return discovery.Failing
	}
	return discovery.Unprobed
}

// Run discovers, probes and refreshes until ctx ends, then saves the state and returns nil. It is called once.
func (p *Pool) Run(ctx context.Context) error {
	if p.reg != nil {
		defer p.reg.Unregister(p.collector)
	}
	g, ctx := errgroup.WithContext(ctx)
	// The services return ctx's error when ctx ends; whatever else they return ends the pool.
	service := func(run func(context.Context) error) {
		g.Go(func() error {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	service(p.writer.run)
	service(p.scheduler.Run)
	service(p.observer.Run)
	service(func(ctx context.Context) error {
		return p.watcher.Run(ctx, func(v discovery.View) { p.writer.post(v) })
	})
	err := g.Wait()
	p.forwards.close()
	p.forwardUp.Close()
	p.refreshUp.Close()
	return err
}

// Answers returns the answers that may be given at now, or nil when nothing may be said: no snapshot yet, or the last one
// is older than max_stale. It takes no lock and allocates nothing.
func (p *Pool) Answers(now snapshot.Time) *answer.Set {
	v := p.view.Load()
	if v.set == nil || now.Sub(snapshot.Time(p.confirmed.Load())) > p.cfg.MaxStale {
		return nil
	}
	return v.set
}

// Forward sends r to a broker and calls r.Done once, from any goroutine. It never blocks.
func (p *Pool) Forward(r *forward.Request) { p.forwards.forward(r) }

// Descriptors is an upper bound of the descriptors that the pool may hold open with the members that it has, and with up
// to 32 before discovery has told.
func (p *Pool) Descriptors() int {
	members := max(len(p.view.Load().members), reserveMembers)
	const other = 16 // registries, the state file
	return min(members*p.cfg.MaxUpstream, maxUpstreamTotal) + maxRefreshConns + 2*members + other
}

// vipAddresses returns the test for an address by which clients reach the VIP.
func vipAddresses(addrs []string) func(host string, port int32) bool {
	own := make(map[string]bool, len(addrs))
	for _, a := range addrs {
		own[strings.ToLower(a)] = true
	}
	return func(host string, port int32) bool {
		return own[strings.ToLower(hostPort(host, port))]
	}
}
