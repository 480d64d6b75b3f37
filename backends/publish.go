package backends

import (
	"slices"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
)

// publish gives readers a new view; the parts that did not change are kept.
func (w *writer) publish() {
	v := view{generation: w.view.generation + 1, members: w.sorted, snapshot: w.cur, sticky: make(map[string]target, len(w.sorted))}
	var drain, rest []*member
	serve, keep := make([]*member, 0, len(w.sorted)), make([]string, 0, len(w.sorted))
	for _, m := range w.sorted {
		switch {
		case m.state == Serving, m.state == Trial:
			serve = append(serve, m)
		case m.state == Draining:
			drain = append(drain, m)
		case m.state == Ejected, m.state == Down && w.need && m.inst.Weight > 0:
			rest = append(rest, m)
		default:
			continue
		}
		keep = append(keep, m.addr)
		if m.usable() {
			v.sticky[m.addr] = w.target(m)
		}
	}
	w.p.forwardUp.Keep(keep)
	w.p.refreshUp.Keep(keep)
	// Better one that drains than none, and better one that fails its probe.
	for _, take := range []*[]*member{&drain, &rest} {
		if len(serve) == 0 {
			serve, *take = *take, nil
		}
	}
	forwardable := make([]policy.Member, 0, len(serve))
	v.targets = make([]target, 0, len(serve))
	for _, m := range serve {
		forwardable = append(forwardable, policy.Member{
			Addr: m.addr, NodeID: m.nodeID, Rack: w.rack(m), Weight: m.inst.Weight, Load: w.p.forwardUp.Load(m.addr), Part: m.part,
		})
		v.targets = append(v.targets, w.target(m))
	}
	if w.need {
		for _, m := range rest {
			v.reserve = append(v.reserve, w.target(m))
		}
	}
	v.need, v.picker = w.need, w.view.picker
	if v.picker == nil || !slices.Equal(forwardable, w.forwardable) {
		w.forwardable, v.picker = forwardable, policy.Build(w.p.cfg.Policy, forwardable, w.options(), w.view.picker)
	}
	v.forwardable = w.forwardable
	w.answers(&v)
	v.heads, v.headPicker = w.heads, w.headPicker
	for _, m := range w.sorted {
		if !m.shown || m.listing.in != m.shownIn {
			w.showMember(m)
		}
	}
	w.view = v
	w.p.view.Store(&v)
	w.showReport()
	w.observe()
}

// options are what holds whatever the policy.
func (w *writer) options() policy.Options {
	return policy.Options{Zone: w.p.cfg.Zone, Full: w.p.cfg.MaxUpstream}
}

func (w *writer) target(m *member) target {
	return target{addr: m.addr, rack: w.rack(m), failing: m.state == Down}
}

// lists says whether the snapshot lists a node id.
func (w *writer) lists(nodeID int32) bool { return w.cur != nil && w.cur.Broker(nodeID) != nil }

// rack is the cluster's word on a member's rack, else the registry's.
func (w *writer) rack(m *member) string {
	if _, rack := m.listedIn(w.cur); rack != nil {
		return *rack
	}
	return m.inst.Rack
}

// answers builds the ready answers when what they are made of has changed.
func (w *writer) answers(v *view) {
	if w.cur == nil {
		return
	}
	apis := snapshot.Overlap(w.tables())
	if apis == nil {
		return // nothing is known of what the brokers speak
	}
	heads := w.listedHeads()
	sameHeads := slices.Equal(heads, w.heads)
	if !sameHeads {
		w.heads = heads
		w.headPicker = policy.Build(w.p.cfg.Heads, heads, w.options(), w.headPicker)
	}
	if snapshot.SameAPIs(apis, w.apis) && apis.FinalizedFeaturesEpoch == w.apis.FinalizedFeaturesEpoch {
		apis = w.apis // what was made of it is known by it
	}
	v.apis = apis
	if w.set != nil && sameHeads && w.set.Snapshot() == w.cur && apis == w.apis {
		v.set = w.set
		return
	}
	in := answer.Input{Snapshot: w.cur, APIs: apis}
	for _, h := range heads {
		in.Heads = append(in.Heads, h.NodeID)
	}
	if len(heads) > 0 {
		in.Pick = w.headPicker.Pick
	}
	w.apis, w.set = apis, w.p.parts.build(in, w.set)
	v.set = w.set
}

// tables are those that the pool's answer has to be true of: of all members, as even one that is down comes back, and of
// all brokers that the snapshot lists and that kvip may dial. A member that is another broker than the registry takes it
// for counts only as long as the snapshot still lists its node.
func (w *writer) tables() []*snapshot.APIs {
	all := make([]*snapshot.APIs, 0, len(w.sorted))
	for _, m := range w.sorted {
		if m.apis != nil && (m.state != Quarantined || w.lists(m.nodeID)) {
			all = append(all, m.apis)
		}
	}
	for id, o := range w.observed {
		if o.apis != nil && w.lists(id) {
			all = append(all, o.apis)
		}
	}
	return all
}

// listedHeads are the brokers that may head a list: serving members that the snapshot lists; if there are none, listed
// brokers that are not known to drain or fail; if there are none, all in turn.
func (w *writer) listedHeads() []policy.Member {
	heads := make([]policy.Member, 0, len(w.sorted))
	known := make(map[int32]bool, len(w.sorted))
	for _, m := range w.sorted {
		if m.nodeID < 0 {
			continue
		}
		known[m.nodeID] = true
		listed, _ := m.listedIn(w.cur)
		if (m.state == Serving || m.state == Trial) && listed {
			h := policy.Member{
				Addr: m.addr, NodeID: m.nodeID, Rack: w.rack(m), Weight: m.inst.Weight, Load: w.p.forwardUp.Load(m.addr),
			}
			if m.state == Trial {
				h.Part = m.part // a share that grows is for forwards: a broker that is just up leads its partitions anyway
			}
			heads = append(heads, h)
		}
	}
	if len(heads) > 0 {
		return heads
	}
	for _, b := range w.cur.Brokers {
		if !known[b.NodeID] {
			heads = append(heads, policy.Member{Addr: hostPort(b.Host, b.Port), NodeID: b.NodeID, Weight: 1})
		}
	}
	return heads
}
