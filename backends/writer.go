package backends

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
	"github.com/kvip/kvip/protocol/answer"
)

const (
	// housekeeping is how often idle connections and the state file are looked at.
	housekeeping = time.Second
	// A large pool's broker list is asked for at every listEvery-th probe only.
	largePool, listEvery = 100, 6
	// debounce is the least time between two views, and four times what making one takes if that is more: in a storm of
	// changes a large pool must not do nothing else.
	debounce = 20 * time.Millisecond
	// maxBatch bounds the events that are taken together before the view is published.
	maxBatch = 256
)

// writer owns all that changes in a pool. Its fields belong to the goroutine in run, from New's return on.
type writer struct {
	p      *Pool
	events chan any
	done   chan struct{}
	// wg counts the goroutines that work for the writer: a refresh round, a save.
	wg sync.WaitGroup

	// Who is in the pool.
	members map[string]*member
	sorted  []*member // by address
	// settleBy is when the cluster id and the first snapshot are decided on without waiting for more probes; zero
	// before there are members.
	settleBy time.Time
	// observed are the brokers outside the registry whose tables count, by node id.
	observed map[int32]*observed

	// Who of them does badly: peers are those that are compared, need says that fewer than half of them pass.
	outliers *healthcheck.Outliers
	peers    []healthcheck.Peer
	need     bool

	// What the cluster looks like.
	clusterID  string
	generation uint64
	cur        *snapshot.Snapshot
	retired    snapshot.Retired
	refresh    refreshState

	// What readers see, and what it was made of.
	view        view
	forwardable []policy.Member
	heads       []policy.Member
	headPicker  policy.Picker
	apis        *snapshot.APIs
	set         *answer.Set
	report      report
	store       storeState
}

// post hands an event to the writer; it waits while the writer is busy, and drops the event once it has stopped.
func (w *writer) post(e any) {
	select {
	case w.events <- e:
	case <-w.done:
	}
}

func newWriter(p *Pool) *writer {
	w := &writer{
		p: p, events: make(chan any, 1024), done: make(chan struct{}),
		members: map[string]*member{}, observed: map[int32]*observed{},
		clusterID: p.cfg.ClusterID,
		report:    report{maxAge: p.cfg.MaxAge},
	}
	w.outliers = healthcheck.NewOutliers(healthcheck.OutlierConfig{
		Method: healthcheck.Method(p.cfg.Outliers.Method), K: p.cfg.Outliers.Deviations, MinSamples: p.cfg.Outliers.MinSamples,
		Floor: p.cfg.Outliers.Floor, Eject: p.cfg.Outliers.Eject, MaxEject: p.cfg.Outliers.MaxEject,
	})
	w.refresh.asker = &refresher{now: p.parts.now, send: func(ctx context.Context, addr string, frame, buf []byte) ([]byte, error) {
		return p.refreshUp.DoInto(ctx, addr, frame, true, buf)
	}}
	if w.clusterID != "" {
		w.report.pinnedBy = "config"
	}
	w.load()
	w.publish()
	return w
}

// run handles events until ctx ends, then saves.
func (w *writer) run(ctx context.Context) error {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	refresh := time.NewTimer(0)
	defer refresh.Stop()
	// Changes that come fast are considered together: the first at once, the others at most a debounce later.
	settled := time.NewTimer(0)
	defer settled.Stop()
	var next time.Time
	cause := ""
	for {
		select {
		case <-ctx.Done():
			close(w.done)
			w.wg.Wait()
			w.saveNow()
			return nil
		case e := <-w.events:
			if ctx.Err() != nil {
				continue // the scheduler may have stopped already
			}
			cause = cmp.Or(w.handle(e), cause)
			for n := 1; n < maxBatch && len(w.events) > 0; n++ {
				cause = cmp.Or(w.handle(<-w.events), cause)
			}
		case <-refresh.C:
		case <-settled.C:
		case <-tick.C:
			cause = cmp.Or(w.housekeep(), cause)
		}
		if begun := time.Now(); cause != "" {
			if wait := next.Sub(begun); wait > 0 {
				settled.Reset(wait)
			} else {
				w.reconsider(cause)
				cause = ""
				next = time.Now().Add(max(debounce, 4*time.Since(begun)))
			}
		}
		if wait, due := w.startRefresh(ctx); due {
			refresh.Reset(wait)
		}
	}
}

// housekeep does what needs doing now and then.
func (w *writer) housekeep() (cause string) {
	w.p.forwardUp.Sweep()
	w.p.refreshUp.Sweep()
	w.noteAge()
	w.save()
	if cause := w.judge(); cause != "" {
		return cause
	}
	if w.clusterID == "" || w.cur == nil {
		return "start" // time may have settled what probes have not
	}
	return ""
}

// handle takes one event and returns why the pool has to be reconsidered, "" if it has not.
func (w *writer) handle(e any) string {
	switch e := e.(type) {
	case discovery.View:
		w.membership(e)
		return fmt.Sprintf("membership %d", e.Generation)
	case healthcheck.Event:
		return w.probed(e)
	case outcome:
		return w.refreshed(e)
	case saved:
		w.saved(e)
	}
	return ""
}

// membership follows the registry: members come, change and go, and so do their probes.
func (w *writer) membership(v discovery.View) {
	if w.settleBy.IsZero() {
		w.settleBy = time.Now().Add(2 * (w.p.cfg.Health.Interval + w.p.cfg.Health.Timeout))
	}
	old := w.members
	w.members = make(map[string]*member, len(v.Members))
	w.sorted = w.sorted[:0:0]
	for _, inst := range v.Members {
		addr := inst.Addr()
		m := old[addr]
		if m != nil && m.checker != nil && m.inst.NodeID != inst.NodeID {
			w.p.scheduler.Remove(addr) // the probe checks the node id
			m.checker = nil
		}
		if m == nil {
			m = newMember(inst)
			w.outliers.Add(addr, m.since)
		}
		m.inst, m.shown = inst, false
		if m.checker == nil {
			w.watch(m)
		}
		w.members[addr] = m
		w.sorted = append(w.sorted, m)
	}
	for addr, m := range old {
		if w.members[addr] == nil {
			w.left(m)
			w.p.scheduler.Remove(addr)
			w.outliers.Forget(addr)
		}
	}
	w.store.dirty = true
}

// watch starts to probe a member.
func (w *writer) watch(m *member) {
	p := w.p
	checker, err := probe.New(probe.Config{
		Addr: m.addr, NodeID: m.inst.NodeID,
		ClusterID: p.pinned,
		MetadataEvery: func() int {
			if s := p.view.Load().snapshot; s != nil && len(s.Brokers) > largePool {
				return listEvery
			}
			return 1
		},
		Dial: p.parts.dial, Resolve: p.resolver.Lookup, Lists: &p.lists,
		Report: func(r probe.Result) { m.result.Store(&r) },
	})
	if err == nil {
		err = p.scheduler.Add(m.addr, checker)
	}
	if err != nil {
		p.log.Error("a member cannot be probed", zap.String("broker", m.addr), zap.Error(err))
		return
	}
	m.checker = checker
}

// probed takes a verdict over a member, or over a broker that only is observed.
func (w *writer) probed(e healthcheck.Event) string {
	if m := w.members[e.Target]; m != nil && m.checker == e.Checker {
		if m.state != Quarantined { // how well it does is told by none of its answers while it is somebody else
			w.outliers.Probed(m.addr, e.Verdict)
		}
		changed := m.heard(e, w.clusterID)
		if !changed && w.clusterID != "" {
			w.showMember(m)
			return ""
		}
		if e.Changed() {
			w.p.watcher.Recheck()
		}
		return "probe of " + m.addr
	}
	return w.observedProbe(e)
}

// reconsider derives everything from the facts: the cluster id, each member's state, the overlap, who heads answers, who
// takes forwards.
func (w *writer) reconsider(cause string) {
	w.pin()
	was := make([]State, len(w.sorted))
	said := make([]string, len(w.sorted))
	for i, m := range w.sorted {
		was[i], said[i] = m.state, m.detail
		m.state, m.reason, m.detail = m.judge(w.clusterID)
	}
	crossExamine(w.sorted, w.cur)
	if w.cur != nil && w.refresh.unlearnt.IsZero() { // while views are held back, this one is old
		leaveOutFenced(w.sorted, w.cur)
	}
	w.steer(was)
	for i, m := range w.sorted {
		if m.state != was[i] || m.detail != said[i] {
			m.shown = false
		}
		if m.state != was[i] {
			m.since = time.Now()
			w.logState(m, was[i], cause)
		}
	}
	w.publish()
}

func (w *writer) logState(m *member, was State, cause string) {
	log := w.p.log.Info
	switch {
	case m.state == Quarantined:
		log = w.p.log.Error
	case m.state == Down, m.state == Ejected:
		log = w.p.log.Warn
	}
	log(fmt.Sprintf("~ %s: %s -> %s", m.addr, was, m.state), zap.String("cause", cause), zap.String("reason", string(m.reason)),
		zap.String("detail", m.detail), zap.Int32("node_id", m.nodeID), zap.Uint64("generation", w.view.generation+1))
}

// settled says that all members have been probed, or that no more is waited for.
func (w *writer) settled() bool {
	if w.settleBy.IsZero() {
		return false
	}
	return time.Now().After(w.settleBy) || !slices.ContainsFunc(w.sorted, func(m *member) bool { return m.health == healthcheck.Unknown })
}

// pin decides on the cluster id at the first start: what most of the probed members say, never what the first says.
func (w *writer) pin() {
	if w.clusterID != "" || !w.settled() {
		return
	}
	id, disagreement := majorityCluster(w.sorted)
	if disagreement != w.report.disagreement {
		w.report.disagreement = disagreement
		if disagreement != "" {
			w.p.log.Error("the members do not agree on a cluster id: set the pool's cluster_id", zap.String("they_say", disagreement))
		}
	}
	if id == "" {
		return
	}
	w.clusterID, w.report.pinnedBy = id, "majority"
	w.p.clusterID.Store(&id)
	w.store.dirty, w.store.urgent = true, true
	w.p.log.Info("the pool's cluster id is what most members say", zap.String("cluster_id", id))
	for _, m := range w.sorted {
		if r := m.result.Load(); r != nil && m.mistaken == healthcheck.OK && ofCluster(r, id) {
			m.apis = r.APIs
		}
	}
}
