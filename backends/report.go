package backends

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvip/kvip/backends/snapshot"
)

// report is what the writer tells readers about its own business. A published one is never written to again.
type report struct {
	clusterID, pinnedBy string
	// disagreement is what the members say when no cluster id has a majority.
	disagreement string
	maxAge       time.Duration
	refreshTook  time.Duration
	fromDisk     bool
	// The last round's.
	refreshBroker, refreshError, rejected string
	stateFile, saveError                  string
	// unusable says that the snapshot was seen to be beyond max_stale, late that it was beyond its maximum age.
	unusable, late bool
}

func (w *writer) showReport() {
	r := w.report
	r.clusterID = w.clusterID
	w.p.report.Store(&r)
}

// note takes what a round has to tell, apart from a new view.
func (w *writer) note(o outcome) {
	w.report.refreshError = ""
	if o.broker != "" {
		w.report.refreshBroker = o.broker
	}
	if o.confirmed == 0 {
		var errs []error
		for _, f := range o.failed {
			errs = append(errs, f.err)
		}
		if err := errors.Join(errs...); err != nil {
			w.report.refreshError = err.Error()
		}
	}
	for _, f := range o.failed {
		w.p.scheduler.Nudge(f.broker)
	}
	for _, r := range o.rejected {
		w.p.rejected[slices.Index(snapshot.Reasons, r.fault.Reason)].Add(1)
		said := r.broker + ": " + r.fault.Error()
		if said != w.report.rejected {
			w.p.log.Warn("a broker's answer is not taken over", zap.String("broker", r.broker),
				zap.String("reason", string(r.fault.Reason)), zap.String("detail", r.fault.Detail))
		}
		w.report.rejected = said
	}
}

// noteAge logs when answers get old, and when they are good again: once each.
func (w *writer) noteAge() {
	if w.cur == nil {
		return
	}
	age := w.p.age()
	log := w.p.log
	r := &w.report
	switch late, unusable := age > 2*r.maxAge, age > w.p.cfg.MaxStale; {
	case unusable && !r.unusable:
		log.Error("no broker has confirmed the snapshot within max_stale: lookups are not answered any more",
			zap.Duration("age", age), zap.Duration("max_stale", w.p.cfg.MaxStale), zap.String("error", r.refreshError))
		r.unusable, r.late = true, true
	case late && !r.late:
		log.Warn("no broker confirms the snapshot: lookups are answered from the last good one",
			zap.Duration("age", age), zap.Duration("max_stale", w.p.cfg.MaxStale), zap.String("error", r.refreshError))
		r.late = true
	case !late && r.late:
		log.Info("the snapshot is confirmed again")
		r.unusable, r.late = false, false
	}
}

// showMember gives readers a copy of a member's state.
func (w *writer) showMember(m *member) {
	listed, _ := m.listedIn(w.cur)
	s := &MemberStatus{
		Broker: m.addr, ID: m.inst.ID, Source: m.inst.Source, NodeID: m.nodeID, Rack: w.rack(m), Weight: m.inst.Weight,
		State: string(m.state), Reason: string(m.reason), Detail: m.detail, Since: m.since,
		Forwardable: m.usable(), Listed: listed,
	}
	if m.passing() {
		o := w.outliers.Get(m.addr)
		s.Until, s.Ejections = o.Until, o.Times
	}
	if m.state == Serving || m.state == Trial {
		s.SharePercent = 100
		if m.part != nil {
			s.SharePercent = 100 * float64(m.part.Load()) / wholePart
		}
	}
	if !m.verdict.At.IsZero() {
		s.LastProbe = "ok"
		if !m.verdict.Passed() {
			s.LastProbe = string(m.verdict.Reason)
		}
		s.LastProbeMS = float64(m.verdict.Took.Microseconds()) / 1000
	}
	m.status.Store(s)
	m.shown, m.shownIn = true, w.cur
}

// Status returns a copy of the pool's state.
func (p *Pool) Status() Status {
	v, r := p.view.Load(), p.report.Load()
	s := Status{
		Pool: p.cfg.Name, Standby: p.cfg.Standby, Policy: p.cfg.Policy, Heads: p.cfg.Heads, Zone: p.cfg.Zone, InNeed: v.need,
		ClusterID: r.clusterID, ClusterIDFrom: r.pinnedBy,
		View:     v.generation,
		Members:  make([]MemberStatus, 0, len(v.members)),
		Snapshot: p.snapshotStatus(v, r),
		Rejected: p.rejections(),
	}
	s.Ready, s.Reason = p.Ready()
	for _, m := range v.members {
		ms := *m.status.Load()
		ms.InFlight, ms.Connections = p.forwardUp.InFlight(m.addr), p.forwardUp.Conns(m.addr)
		s.Members = append(s.Members, ms)
		s.Forwards.InFlight += ms.InFlight
		s.Forwards.Connections += ms.Connections
	}
	s.Forwards.Waiting, s.Forwards.Shared = p.forwardUp.Waiting(), p.forwards.shared.Load()
	s.Forwards.ToFailing = p.forwards.needed.Load()
	ws := p.watcher.Status()
	s.Held = ws.Held
	s.Discovery = make([]DiscoveryStatus, 0, len(ws.Providers))
	for _, d := range ws.Providers {
		s.Discovery = append(s.Discovery, DiscoveryStatus{
			Provider: d.Name, LastSuccess: d.LastSuccess, LastError: d.Error, ErrorSince: d.ErrorSince, Stale: d.Stale,
			Instances: d.Instances, Skipped: d.Skipped,
		})
	}
	s.Alarms = alarms(&s, r, p.cfg.MaxStale)
	return s
}

func (p *Pool) snapshotStatus(v *view, r *report) SnapshotStatus {
	s := SnapshotStatus{
		AgeSeconds: -1, FromDisk: r.fromDisk, EffectiveMaxAgeSeconds: r.maxAge.Seconds(), RefreshSeconds: r.refreshTook.Seconds(),
		LastRefreshBroker: r.refreshBroker, LastRefreshError: r.refreshError, LastRejected: r.rejected, StateFile: r.stateFile,
	}
	if v.apis != nil {
		s.APIKeys = len(v.apis.Keys)
	}
	if v.snapshot == nil {
		return s
	}
	age := p.age()
	s.AgeSeconds = age.Seconds()
	s.Fresh, s.Usable = age <= r.maxAge, v.set != nil && age <= p.cfg.MaxStale
	s.Generation, s.KRaft = v.snapshot.Generation, v.snapshot.KRaft
	s.Brokers, s.Topics, s.Partitions = len(v.snapshot.Brokers), len(v.snapshot.Topics), v.snapshot.Partitions
	return s
}

// age is the time since a broker last confirmed the snapshot.
func (p *Pool) age() time.Duration { return p.parts.now().Sub(snapshot.Time(p.confirmed.Load())) }

func (p *Pool) rejections() map[string]uint64 {
	out := map[string]uint64{}
	for i, r := range snapshot.Reasons {
		if n := p.rejected[i].Load(); n > 0 {
			out[string(r)] = n
		}
	}
	return out
}

// Ready says whether a client could bootstrap here, and the first rule that fails. An answer that may still be given is
// enough: clients go on to the brokers by themselves, and a pool that only this kvip cannot reach is still served.
func (p *Pool) Ready() (bool, string) {
	v, r := p.view.Load(), p.report.Load()
	switch {
	case v.set != nil && p.age() <= p.cfg.MaxStale:
		return true, ""
	case v.set != nil:
		return false, fmt.Sprintf("the snapshot is %v old, max_stale is %v: %s", p.age().Round(time.Second), p.cfg.MaxStale, why(v, r))
	}
	return false, why(v, r)
}

// why says why there is no usable snapshot, the first cause first.
func why(v *view, r *report) string {
	states := map[State][]string{}
	for _, m := range v.members {
		s := m.status.Load()
		states[State(s.State)] = append(states[State(s.State)], fmt.Sprintf("%s %s", s.Broker, s.Reason))
	}
	usable := len(states[Serving]) + len(states[Trial]) + len(states[Draining])
	switch {
	case len(v.members) == 0:
		return "no registry has told of a broker yet"
	case r.disagreement != "" && r.clusterID == "":
		return "the brokers do not agree on a cluster id: " + r.disagreement
	case len(states[Unknown]) > 0 && usable == 0:
		return "the brokers are being probed"
	case usable == 0:
		return "no broker can be used: " + few(append(states[Quarantined], states[Down]...))
	case r.refreshError != "":
		return "no broker answers a refresh: " + r.refreshError
	case r.rejected != "":
		return "no broker gives a usable answer: " + r.rejected
	}
	return "the first refresh is under way"
}

// few joins the first few of many.
func few(all []string) string {
	const most = 3
	if len(all) > most {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, ", ")
}

// alarms are the conditions that want a person now.
func alarms(s *Status, r *report, maxStale time.Duration) []string {
	var out []string
	for _, m := range s.Members {
		if m.State == string(Quarantined) {
			out = append(out, fmt.Sprintf("%s is quarantined: %s: %s", m.Broker, m.Reason, m.Detail))
		}
	}
	if s.InNeed {
		out = append(out, "fewer than half of the brokers pass their probes: those that do not are asked too, when the others have failed")
	}
	if r.disagreement != "" {
		out = append(out, "the brokers do not agree on a cluster id, set the pool's cluster_id: "+r.disagreement)
	}
	if s.Snapshot.Generation > 0 && !s.Snapshot.Usable {
		out = append(out, fmt.Sprintf("the snapshot is %.0f s old, beyond max_stale: lookups are not answered", s.Snapshot.AgeSeconds))
	}
	if s.Snapshot.Usable && !s.Snapshot.Fresh && s.Snapshot.LastRefreshError != "" {
		out = append(out, fmt.Sprintf("no broker answers: lookups are answered from a snapshot that is %.0f s old, for %.0f s at most, and nothing can be forwarded: %s",
			s.Snapshot.AgeSeconds, maxStale.Seconds(), strings.ReplaceAll(s.Snapshot.LastRefreshError, "\n", "; ")))
	}
	if s.Snapshot.FromDisk {
		out = append(out, "the snapshot is from disk: no broker has confirmed it since the start")
	}
	if r.saveError != "" {
		out = append(out, "the state cannot be saved: "+r.saveError)
	}
	if strings.HasPrefix(r.stateFile, "ignored") {
		out = append(out, "state file "+r.stateFile)
	}
	return out
}
