package backends

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
)

const (
	// observeEvery is how many probe intervals lie between two looks at a broker outside the registry.
	observeEvery = 10
	// learners bounds the brokers that are asked for their table at once before a view that lists them is used.
	learners = 8
)

// observed is a broker that the snapshot lists, no registry does, and dial_allow lets kvip ask which versions it speaks.
type observed struct {
	addr    string
	checker healthcheck.Checker
	apis    *snapshot.APIs
	result  atomic.Pointer[probe.Result]
}

// observe follows the snapshot: brokers outside the registry that may be dialled are asked now and then.
func (w *writer) observe() {
	if len(w.p.cfg.DialAllow)+len(w.observed) == 0 || w.cur == nil {
		return
	}
	registered, tells := map[int32]bool{}, map[int32]bool{}
	for _, m := range w.sorted {
		registered[m.nodeID] = true
		tells[m.nodeID] = tells[m.nodeID] || m.apis != nil
	}
	for id, o := range w.observed {
		b := w.cur.Broker(id)
		if b != nil && o.addr == "" { // known from the last run
			o.addr = hostPort(b.Host, b.Port)
		}
		// One that is registered is a member's business, once that has a table of its own.
		if b == nil || tells[id] || hostPort(b.Host, b.Port) != o.addr {
			if o.checker != nil {
				w.p.observer.Remove(o.addr)
			}
			delete(w.observed, id)
		}
	}
	for _, b := range w.cur.Brokers {
		addr := hostPort(b.Host, b.Port)
		if registered[b.NodeID] || len(w.p.cfg.DialAllow) == 0 || !w.p.mayDial(b.Host) {
			continue
		}
		o := w.observed[b.NodeID]
		if o == nil {
			o = &observed{addr: addr}
			w.observed[b.NodeID] = o
		}
		if o.checker != nil {
			continue
		}
		checker, err := w.p.observerFor(addr, b.NodeID, func(r probe.Result) { o.result.Store(&r) })
		if err == nil {
			err = w.p.observer.Add(addr, checker)
		}
		if err != nil {
			w.p.log.Warn("a listed broker cannot be asked for its versions", zap.String("broker", addr), zap.Error(err))
			continue
		}
		o.checker = checker
	}
}

// left keeps the table of a member that no registry lists any more for as long as the cluster still does: clients are
// still told of it.
func (w *writer) left(m *member) {
	if m.apis == nil || m.nodeID < 0 || w.cur == nil {
		return
	}
	if b := w.cur.Broker(m.nodeID); b != nil && w.observed[m.nodeID] == nil {
		w.observed[m.nodeID] = &observed{addr: hostPort(b.Host, b.Port), apis: m.apis}
	}
}

func hostPort(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// mayDial says whether a host may be in dial_allow: a name may, until it is resolved.
func (p *Pool) mayDial(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err != nil || p.allowed(ip)
}

func (p *Pool) allowed(ip netip.Addr) bool {
	for _, net := range p.cfg.DialAllow {
		if net.Contains(ip.Unmap()) {
			return true
		}
	}
	return false
}

// dialAllowed connects only into dial_allow, judged by the address that is really connected to.
func (p *Pool) dialAllowed(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if !p.allowed(to.Addr()) {
			return fmt.Errorf("%s is not in dial_allow", to.Addr())
		}
		return nil
	}}
	return d.DialContext(ctx, network, addr)
}

// observerFor makes the probe of a broker outside the registry.
func (p *Pool) observerFor(addr string, nodeID int32, report func(probe.Result)) (*probe.Prober, error) {
	return probe.New(probe.Config{
		Addr: addr, NodeID: nodeID, ClusterID: p.pinned, Dial: p.dialAllowed, Resolve: p.resolver.Lookup, Lists: &p.lists, Report: report,
	})
}

// observedProbe takes a verdict over a broker outside the registry.
func (w *writer) observedProbe(e healthcheck.Event) string {
	for _, o := range w.observed {
		if o.checker == nil || o.checker != e.Checker {
			continue
		}
		r := o.result.Load()
		if !e.Verdict.Passed() || r == nil || r.APIs == nil {
			return "" // its last known table stays
		}
		same := snapshot.SameAPIs(o.apis, r.APIs)
		o.apis = r.APIs
		if !same {
			return "versions of " + o.addr
		}
		return ""
	}
	return ""
}

// wanted says of which brokers the tables have to be learnt before a view that lists them is used.
type wanted struct {
	p *Pool
	// have are node ids whose table is known, or that need not be asked; had are those whose last table may be over.
	have, had map[int32]bool
	// registered are the addresses of members by what a list may call them.
	registered map[string]string
	byID       map[int32]string
}

// wanted is what a round needs to know of the members.
func (w *writer) wanted() wanted {
	x := wanted{p: w.p, have: map[int32]bool{}, had: map[int32]bool{}, registered: map[string]string{}, byID: map[int32]string{}}
	for _, m := range w.sorted {
		switch {
		case w.cur == nil && m.health != healthcheck.Unknown: // at the start those that are down have just been asked
			x.have[m.nodeID] = true
		case m.apis != nil && m.health == healthcheck.Up && m.verdict.Passed():
			x.have[m.nodeID] = true
		case m.apis != nil: // one that was away may be another version now
			x.had[m.nodeID] = true
		}
		x.registered[strings.ToLower(m.addr)] = m.addr
		if m.nodeID >= 0 {
			x.byID[m.nodeID] = m.addr
		}
	}
	for id, o := range w.observed {
		if o.apis != nil {
			x.have[id] = true
		}
	}
	return x
}

// learn asks the brokers that next lists and cur does not for their tables, as far as they may be dialled and answer
// soon: the pool's ApiVersions has to be true of them before clients hear of them (clients.md R8). strange and known are
// those that did not, of whom nothing or the last table is known.
func (x wanted) learn(ctx context.Context, cur, next *snapshot.Snapshot) (tables map[int32]*snapshot.APIs, strange, known []string) {
	ctx, cancel := context.WithTimeout(ctx, 2*x.p.cfg.Health.Timeout)
	defer cancel()
	var mu sync.Mutex
	tables = map[int32]*snapshot.APIs{}
	var g errgroup.Group
	g.SetLimit(learners)
	for _, b := range next.Brokers {
		if x.have[b.NodeID] || cur != nil && cur.Broker(b.NodeID) != nil {
			continue
		}
		prober := x.prober(b.NodeID, b.Host, b.Port)
		if prober == nil {
			continue
		}
		g.Go(func() error {
			defer prober.Close()
			one, cancel := context.WithTimeout(ctx, x.p.cfg.Health.Timeout)
			defer cancel()
			r := prober.Run(one)
			mu.Lock()
			defer mu.Unlock()
			switch addr := hostPort(b.Host, b.Port); {
			case r.Verdict.Passed() && r.APIs != nil:
				tables[b.NodeID] = r.APIs
			case x.had[b.NodeID]:
				known = append(known, addr)
			default:
				strange = append(strange, addr)
			}
			return nil
		})
	}
	_ = g.Wait()
	return tables, strange, known
}

// prober returns the probe of a listed broker, nil when it may not be dialled.
func (x wanted) prober(id int32, host string, port int32) *probe.Prober {
	addr, ok := x.byID[id]
	if !ok {
		addr, ok = x.registered[strings.ToLower(hostPort(host, port))]
	}
	var p *probe.Prober
	var err error
	switch {
	case ok:
		p, err = probe.New(probe.Config{Addr: addr, NodeID: id, ClusterID: x.p.pinned, Dial: x.p.parts.dial, Resolve: x.p.resolver.Lookup})
	case len(x.p.cfg.DialAllow) > 0 && x.p.mayDial(host):
		p, err = x.p.observerFor(hostPort(host, port), id, nil)
	}
	if err != nil {
		return nil
	}
	return p
}

// learned takes over the table of a broker that is new in the snapshot.
func (w *writer) learned(id int32, apis *snapshot.APIs) {
	b := w.cur.Broker(id)
	if b == nil {
		return
	}
	addr := hostPort(b.Host, b.Port)
	for _, m := range w.sorted {
		if m.nodeID == id || strings.EqualFold(m.addr, addr) {
			m.apis = apis
			return
		}
	}
	w.observed[id] = &observed{addr: addr, apis: apis}
}

// pinned returns the pool's cluster id, "" while it is not known.
func (p *Pool) pinned() string { return *p.clusterID.Load() }
