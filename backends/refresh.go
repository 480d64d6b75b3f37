package backends

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvip/kvip/backends/snapshot"
)

const (
	// A view is refreshed at half its maximum age, and a refresh that takes long stretches that age: max(max_age, 5 x).
	refreshesPerAge = 2
	stretch         = 5
	// dialTimeout bounds a connect of the pool's own.
	dialTimeout = time.Second
	// minAsk and maxAsk bound what one broker may take to answer a refresh.
	minAsk, maxAsk = 250 * time.Millisecond, 10 * time.Second
)

// refreshState is what the writer knows about refreshes, of which at most one is under way.
type refreshState struct {
	asker   *refresher
	running bool
	started time.Time
	due     time.Time
	// rotation moves on by a broker a round.
	rotation int
	// doubted is the last round's; failures counts the rounds in a row that nobody answered.
	doubted, failures int
	took              time.Duration
	// unlearnt is since when views are held back for a broker that has not told its versions; zero when none is.
	unlearnt time.Time
}

// unlearntFor is how long views are held back that list a new broker which does not tell its versions. A broker is
// listed some moments before it answers; one that kvip cannot reach must not keep clients from what else is new.
// For one that comes back, and is most likely what it was, that is returnFor.
const unlearntFor, returnFor = 5 * time.Second, time.Second

// startRefresh starts the next round if it is due and nothing is under way; otherwise it says how long to wait for it,
// or that it is some event that has to be waited for.
func (w *writer) startRefresh(ctx context.Context) (wait time.Duration, due bool) {
	r := &w.refresh
	if r.running || w.clusterID == "" || w.cur == nil && !w.settled() {
		return 0, false
	}
	if wait = time.Until(r.due); wait > 0 {
		return wait, true
	}
	askees := w.askees()
	if len(askees) == 0 {
		return 0, false
	}
	r.rotation++
	r.running, r.started = true, time.Now()
	tables := w.tables()
	plan := plan{
		askees: askees, cur: w.cur, retired: &w.retired, doubted: r.doubted, overlap: snapshot.Overlap(tables),
		kraft:   slices.ContainsFunc(tables, (*snapshot.APIs).KRaft),
		rules:   snapshot.Rules{ClusterID: w.clusterID, VIP: vipAddresses(w.p.cfg.VIPAddresses)},
		timeout: w.askTimeout(),
	}
	wanted := w.wanted()
	held := time.Duration(0)
	if !r.unlearnt.IsZero() {
		held = time.Since(r.unlearnt)
	}
	w.wg.Go(func() {
		o := r.asker.round(ctx, plan)
		if o.accepted != nil {
			var strange, known []string
			o.tables, strange, known = wanted.learn(ctx, plan.cur, o.accepted)
			if plan.cur != nil && (len(strange) > 0 && held < unlearntFor || len(known) > 0 && held < returnFor) {
				o.hold(append(strange, known...))
			}
		}
		w.post(o)
	})
	return 0, false
}

// askees are the members that may be asked: those that serve before those that drain, those before the ones that do badly,
// and in need, last, those whose probes fail; each round another one first.
func (w *writer) askees() []askee {
	var all []askee
	states := []State{Serving, Trial, Draining, Ejected}
	if w.need {
		states = append(states, Down)
	}
	for _, want := range states {
		var some []askee
		for _, m := range w.sorted {
			if m.state == want && m.apis != nil && (want != Down || m.inst.Weight > 0) {
				some = append(some, askee{m.addr, m.apis})
			}
		}
		if len(some) > 0 {
			n := w.refresh.rotation % len(some)
			all = append(append(all, some[n:]...), some[:n]...)
		}
	}
	return all
}

// effectiveMaxAge is max_age, or more where a refresh takes so long that asking that often would be all that brokers do.
func (w *writer) effectiveMaxAge() time.Duration { return max(w.p.cfg.MaxAge, stretch*w.refresh.took) }

func (w *writer) refreshInterval() time.Duration {
	const jitter = 0.1
	return time.Duration(float64(w.effectiveMaxAge()/refreshesPerAge) * (1 - jitter*rand.Float64()))
}

// askTimeout leaves time to ask another broker within the maximum age; when all have failed it grows, as a cold or large
// cluster may just need it.
func (w *writer) askTimeout() time.Duration {
	return min(maxAsk, max(minAsk, w.effectiveMaxAge()/4, 4*w.refresh.took)<<min(w.refresh.failures, 6))
}

// refreshed takes a round's outcome.
func (w *writer) refreshed(o outcome) string {
	r := &w.refresh
	r.running, r.doubted = false, o.doubted
	switch {
	case !o.held:
		r.unlearnt = time.Time{}
	case r.unlearnt.IsZero():
		r.unlearnt = r.started
	}
	defer func() { r.due = r.started.Add(w.refreshInterval()) }()
	w.note(o)
	defer w.showReport()
	if o.confirmed == 0 {
		r.failures++
		return ""
	}
	r.failures = 0
	// A rise counts at once, a fall slowly: one quick answer does not make a cluster small.
	r.took = max(o.took, (7*r.took+o.took)/8)
	w.report.maxAge, w.report.refreshTook = w.effectiveMaxAge(), o.took
	if w.cur == nil && o.accepted == nil {
		return "" // refused for a reason, and there is nothing to fall back on
	}
	if o.accepted != nil {
		w.accept(o)
	}
	w.p.confirmed.Store(int64(o.confirmed))
	w.report.fromDisk = false
	if o.accepted != nil || w.epochMoved() {
		return fmt.Sprintf("refresh from %s", o.broker)
	}
	return ""
}

// epochMoved says that the finalized features' epoch, a log offset that moves by itself, is to be published again. Once a
// refresh is often enough for that.
func (w *writer) epochMoved() bool {
	if w.apis == nil {
		return true
	}
	epoch := int64(-1)
	for _, t := range w.tables() {
		epoch = max(epoch, t.FinalizedFeaturesEpoch)
	}
	return epoch != w.apis.FinalizedFeaturesEpoch
}

// accept makes a round's candidate the view.
func (w *writer) accept(o outcome) {
	was := w.cur
	w.generation++
	o.accepted.Generation = w.generation
	w.retired.Replace(was, o.accepted)
	w.cur = o.accepted
	for id, apis := range o.tables {
		w.learned(id, apis)
	}
	w.store.dirty = true
	log := w.p.log.Debug
	changes := brokerChanges(was, w.cur)
	if changes != "" {
		log = w.p.log.Info
	}
	log("snapshot accepted", zap.Uint64("generation", w.generation), zap.String("broker", o.broker), zap.String("brokers", changes),
		zap.Int("topics", len(w.cur.Topics)))
}

// brokerChanges says in words how the broker list differs.
func brokerChanges(was, is *snapshot.Snapshot) string {
	var out []string
	addr := func(s *snapshot.Snapshot, id int32) string {
		if s == nil || s.Broker(id) == nil {
			return ""
		}
		b := s.Broker(id)
		return hostPort(b.Host, b.Port)
	}
	if was != nil {
		for _, b := range was.Brokers {
			switch now, before := addr(is, b.NodeID), addr(was, b.NodeID); {
			case now == "":
				out = append(out, fmt.Sprintf("-%d@%s", b.NodeID, before))
			case now != before:
				out = append(out, fmt.Sprintf("~%d@%s->%s", b.NodeID, before, now))
			}
		}
	}
	for _, b := range is.Brokers {
		if addr(was, b.NodeID) == "" {
			out = append(out, fmt.Sprintf("+%d@%s", b.NodeID, addr(is, b.NodeID)))
		}
	}
	const most = 20
	if len(out) > most {
		out = append(out[:most], fmt.Sprintf("and %d more", len(out)-most))
	}
	return strings.Join(out, " ")
}
