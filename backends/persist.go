package backends

import (
	"time"

	"go.uber.org/zap"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
)

const (
	// saveEvery is the least time between two saves of what changed; savedAge is how old the saved confirmation may get
	// while nothing changes, less where max_stale is short.
	saveEvery = 10 * time.Second
	savedAge  = time.Minute
)

// storeState is what the writer knows about its state file.
type storeState struct {
	// dirty: something differs from the file; urgent: it is worth a save at once.
	dirty, urgent bool
	saving        bool
	last          time.Time
}

// saved is the end of a save.
type saved struct{ err error }

// load starts from the state file, if there is a good one: members to be probed, tables, the cluster id, and the snapshot
// if it may still be served by the wall clock.
func (w *writer) load() {
	dir := w.p.cfg.StateDir
	if dir == "" {
		w.report.stateFile = "off"
		return
	}
	removeUnfinished(dir, w.p.cfg.Name)
	s, err := loadState(dir, w.p.cfg.Name)
	switch {
	case err != nil:
		w.report.stateFile = "ignored: " + err.Error()
		w.p.log.Warn("the state file is ignored", zap.Error(err))
		return
	case s == nil:
		w.report.stateFile = "none"
		return
	case w.clusterID != "" && s.ClusterID != w.clusterID:
		w.report.stateFile = "ignored: it is about cluster " + s.ClusterID + ", the configuration names " + w.clusterID
		w.p.log.Warn("the state file is ignored", zap.String("why", w.report.stateFile))
		return
	}
	w.report.stateFile = "loaded"
	if w.clusterID == "" && s.ClusterID != "" {
		w.clusterID, w.report.pinnedBy = s.ClusterID, "state_dir"
		w.p.clusterID.Store(&s.ClusterID)
	}
	for _, inst := range s.Members {
		m := newMember(inst)
		w.members[m.addr] = m
		w.sorted = append(w.sorted, m)
	}
	w.loadTables(s)
	w.loadView(s)
}

func (w *writer) loadTables(s *state) {
	for _, stored := range s.APIs {
		apis, err := stored.read()
		if err != nil {
			w.p.log.Warn("a part of the state file is ignored", zap.Error(err))
			continue
		}
		if m := w.members[stored.Broker]; m != nil {
			m.apis, m.nodeID = apis, stored.NodeID
		} else if stored.Broker == "" {
			w.observed[stored.NodeID] = &observed{apis: apis}
		}
	}
}

func (w *writer) loadView(s *state) {
	if s.View == nil {
		return
	}
	age := time.Since(s.View.Confirmed)
	if age < 0 {
		age = 0 // the clock went back; how old it is nobody knows, and the refresh is on its way
	}
	if age > w.p.cfg.MaxStale {
		w.report.stateFile = "loaded without its snapshot, which is " + age.Round(time.Second).String() + " old"
		w.p.log.Warn("the snapshot in the state file is too old to be served", zap.Duration("age", age), zap.Duration("max_stale", w.p.cfg.MaxStale))
		return
	}
	rules := snapshot.Rules{ClusterID: w.clusterID, VIP: vipAddresses(w.p.cfg.VIPAddresses)}
	cur, err := s.View.read(rules)
	if err != nil {
		w.report.stateFile = "loaded without its snapshot: " + err.Error()
		w.p.log.Warn("the snapshot in the state file is ignored", zap.Error(err))
		return
	}
	for id, o := range w.observed {
		if b := cur.Broker(id); b != nil {
			o.addr = hostPort(b.Host, b.Port)
		}
	}
	w.generation++
	cur.Generation = w.generation
	w.cur = cur
	w.report.fromDisk = true
	w.p.confirmed.Store(int64(w.p.parts.now().Add(-age)))
	w.p.log.Info("the last known snapshot is served until a broker confirms or replaces it", zap.Duration("age", age),
		zap.Int("brokers", len(cur.Brokers)), zap.Int("topics", len(cur.Topics)))
}

// restored are the members of the state file, for discovery to confirm.
func (w *writer) restored() []discovery.Instance {
	out := make([]discovery.Instance, len(w.sorted))
	for i, m := range w.sorted {
		out[i] = m.inst
	}
	return out
}

// save writes the state file in the background when there is something worth it.
func (w *writer) save() {
	st := &w.store
	if w.p.cfg.StateDir == "" || st.saving || w.clusterID == "" {
		return
	}
	old, most := time.Since(st.last), min(savedAge, w.p.cfg.MaxStale/4)
	if !st.urgent && !(st.dirty && old > min(saveEvery, most)) && !(w.cur != nil && old > most) {
		return
	}
	st.saving, st.dirty, st.urgent, st.last = true, false, false, time.Now()
	capture := w.capture()
	w.wg.Go(func() { w.post(saved{saveState(w.p.cfg.StateDir, capture())}) })
}

// saveNow writes it at the end.
func (w *writer) saveNow() {
	if w.p.cfg.StateDir == "" || w.clusterID == "" {
		return
	}
	w.saved(saved{saveState(w.p.cfg.StateDir, w.capture()())})
}

func (w *writer) saved(s saved) {
	w.store.saving = false
	before := w.report.saveError
	w.report.saveError = ""
	if s.err != nil {
		w.store.dirty = true
		w.report.saveError = s.err.Error()
	}
	if s.err != nil && before == "" {
		w.p.log.Error("the state cannot be saved: a start without the registry will have nothing to serve", zap.Error(s.err))
	}
	w.showReport()
}

// capture collects what is to be saved; encoding it, which takes long for a large cluster, is left to what it returns.
func (w *writer) capture() func() *state {
	s := &state{Pool: w.p.cfg.Name, ClusterID: w.clusterID, Saved: time.Now()}
	tables := map[int]*snapshot.APIs{}
	table := func(broker string, id int32, apis *snapshot.APIs) {
		if apis != nil {
			tables[len(s.APIs)] = apis
			s.APIs = append(s.APIs, storedAPIs{Broker: broker, NodeID: id})
		}
	}
	for _, m := range w.sorted {
		s.Members = append(s.Members, m.inst)
		table(m.addr, m.nodeID, m.apis)
	}
	for id, o := range w.observed {
		table("", id, o.apis)
	}
	cur := w.cur
	confirmed := time.Now().Add(-w.p.age())
	return func() *state {
		for i, apis := range tables {
			s.APIs[i] = storeAPIs(s.APIs[i].Broker, s.APIs[i].NodeID, apis)
		}
		if cur != nil {
			s.View = storeView(cur, confirmed)
		}
		return s
	}
}
