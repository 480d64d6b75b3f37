package discovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// DefaultShrinkHold is how long an unexplained removal is held back.
const DefaultShrinkHold = 60 * time.Second

// ProbeState is what the pool's own probe says about a member.
type ProbeState int

// What a probe can say.
const (
	Unprobed ProbeState = iota // no verdict yet
	Passing
	Failing
)

// Rules are what a Membership decides by.
type Rules struct {
	// Providers are the names whose updates count, in the order of their say: where two list one address, the first
	// one's weight and warning hold, and its rack and node id unless it has none.
	Providers []string
	// ShrinkHold is how long a member must be missing from the registry before it goes; 0 is DefaultShrinkHold.
	ShrinkHold time.Duration
	// Probe says what the pool's own probe thinks of a member; nil is Unprobed for all.
	Probe func(addr string) ProbeState
}

// Membership turns what providers say into a pool's members. An answer is a proposal:
//
//   - a new entry, and a changed weight, rack, node id or warning, is taken at once;
//   - a failed read changes nothing, and neither does an answer that leaves no provider listing anything: no time is
//     counted up to it, or a registry that comes back empty and fills again would be believed at its first entry;
//   - a member that no provider lists any more goes after Rules.ShrinkHold, once a non-stale read at or after that moment
//     still lacks it (so two reads, a hold apart); while its own probe fails it goes at the first such read;
//   - a removal that is explained goes at the first such read too: the registry has the entry in maintenance; or has it
//     as critical or otherwise unfit (Update.Skipped), while at least half of those that would be members without this
//     rule are listed and do not fail their probes;
//   - one that an Explicit list no longer has, or that an operator removed (SetOrders), goes at once;
//   - a weight that an operator has given holds instead of the registry's;
//   - whatever is said, the last member stays, and the last that passes its probe does until another one passes: what is
//     listed instead may be a mistake.
//
// It has no clock, no lock and no goroutine: every call takes the time. Watcher drives it.
type Membership struct {
	rules      Rules
	lists      map[string]map[string]*entry // by provider, by Addr
	members    map[string]Instance          // by Addr
	said       map[string]Instance          // by Addr: what the providers last said of a member, without Orders
	skipped    map[string]map[string]string // by provider, by Addr: why the last non-stale read did not take it
	unfit      map[string]bool              // by Addr: members that went because the registry had them as unfit
	removed    map[string]bool              // by Addr: Orders.Removed
	spared     string                       // the Addr that may go, and stays because nobody could be used without it
	weights    map[string]int               // by Addr: Orders.Weights
	generation uint64
}

// entry is what one provider says, or last said, about one address.
type entry struct {
	instance Instance
	listed   bool
	// The rest is about an entry that is listed no more: the non-stale reads that lacked it.
	reads       int
	first, last time.Time
	explicit    bool
}

// NewMembership returns a membership without members.
func NewMembership(r Rules) *Membership {
	if r.ShrinkHold <= 0 {
		r.ShrinkHold = DefaultShrinkHold
	}
	if r.Probe == nil {
		r.Probe = func(string) ProbeState { return Unprobed }
	}
	m := &Membership{
		rules: r, lists: map[string]map[string]*entry{}, members: map[string]Instance{},
		said: map[string]Instance{}, skipped: map[string]map[string]string{}, unfit: map[string]bool{},
	}
	for _, p := range r.Providers {
		m.lists[p] = map[string]*entry{}
	}
	return m
}

// Restore makes members of what the last run left on disk, to be confirmed by the providers as any member is. It is for
// the start, before the first Apply. ok is false when there is nothing usable in members.
func (m *Membership) Restore(members []Instance, now time.Time) (v View, ok bool) {
	var changes []Change
	for _, in := range members {
		addr := in.Addr()
		if _, dup := m.members[addr]; dup || !usable(in) || m.removed[addr] {
			continue
		}
		m.members[addr], m.said[addr] = in, in
		changes = append(changes, Change{Op: Added, Instance: in, Cause: CauseRestored, Detail: "known from the last run"})
		// A member whose provider is gone from the configuration is everybody's to confirm.
		for name, list := range m.lists {
			if _, known := m.lists[in.Source]; !known || name == in.Source {
				list[addr] = &entry{instance: in}
			}
		}
	}
	return m.view(changes, now)
}

// Apply takes one update; one of a provider that Rules do not name is ignored. ok says that the membership changed, and v
// is the new view.
func (m *Membership) Apply(u Update, now time.Time) (v View, ok bool) {
	m.file(u, now)
	return m.decide(now)
}

// file notes what an update says.
func (m *Membership) file(u Update, now time.Time) {
	list, known := m.lists[u.Provider]
	if !known || u.Err != nil {
		return
	}
	seen := make(map[string]bool, len(u.Instances))
	for _, in := range u.Instances {
		addr := in.Addr()
		if seen[addr] || !usable(in) {
			continue
		}
		seen[addr] = true
		list[addr] = &entry{instance: in, listed: true}
	}
	counts := len(seen) > 0 || m.listedByOthers(u.Provider)
	for addr, e := range list {
		switch _, member := m.members[addr]; {
		case seen[addr] || u.Stale:
		case !member:
			delete(list, addr)
		case !counts:
			e.listed, e.reads = false, 0 // a hold that had begun begins anew
		default:
			e.listed, e.explicit = false, u.Explicit
			if e.reads == 0 {
				e.first = now
			}
			e.reads++
			e.last = now
		}
	}
	if !u.Stale {
		m.skipped[u.Provider] = map[string]string{}
		for _, s := range u.Skipped {
			m.skipped[u.Provider][s.Addr] = s.Reason
		}
	}
}

// listedByOthers says whether any provider but this one lists anything.
func (m *Membership) listedByOthers(name string) bool {
	for other, list := range m.lists {
		for _, e := range list {
			if e.listed && other != name {
				return true
			}
		}
	}
	return false
}

// Tick reconsiders what is held back, because a probe has changed its mind.
func (m *Membership) Tick(now time.Time) (v View, ok bool) { return m.decide(now) }

// SetOrders replaces what operators have said.
func (m *Membership) SetOrders(o Orders, now time.Time) (v View, ok bool) {
	m.order(o)
	return m.decide(now)
}

// Members returns the current members, ascending by Addr.
func (m *Membership) Members() []Instance {
	out := slices.Collect(maps.Values(m.members))
	sortByAddr(out)
	return out
}

// usable says whether an instance can be dialled at all; providers skip the others with a reason.
func usable(in Instance) bool { return in.Host != "" && in.Port > 0 && in.Port < 1<<16 }

// merged folds what the providers list into one instance an address.
func (m *Membership) merged() map[string]Instance {
	out := map[string]Instance{}
	for _, name := range m.rules.Providers {
		for addr, e := range m.lists[name] {
			if !e.listed || m.removed[addr] {
				continue
			}
			in, have := out[addr]
			if !have {
				out[addr] = e.instance
				continue
			}
			if in.Rack == "" {
				in.Rack = e.instance.Rack
			}
			if in.NodeID < 0 {
				in.NodeID = e.instance.NodeID
			}
			out[addr] = in
		}
	}
	return out
}

// decide brings the members in line with the lists, as far as the rules let it.
func (m *Membership) decide(now time.Time) (View, bool) {
	var changes []Change
	listed := m.merged()
	for addr, in := range listed {
		if _, have := m.members[addr]; !have {
			in = m.ordered(in)
			m.members[addr] = in
			changes = append(changes, Change{Op: Added, Instance: in, Cause: CauseListed, Detail: "listed by " + in.Source})
		}
	}
	var leaving []Change
	spare := m.spare(listed)
	for addr, in := range m.members {
		if _, still := listed[addr]; still {
			continue
		}
		if cause, detail := m.mayGo(addr, len(listed) > 0, spare); cause != "" {
			leaving = append(leaving, Change{Op: Removed, Instance: in, Cause: cause, Detail: detail})
		}
	}
	if m.spared = ""; len(leaving) > 0 && !m.canDoWithout(leaving) {
		leaving = m.spareOne(leaving)
	}
	for _, c := range leaving {
		addr := c.Instance.Addr()
		delete(m.members, addr)
		delete(m.said, addr)
		if c.Cause == CauseUnfit {
			m.unfit[addr] = true
		}
		for _, list := range m.lists {
			if e := list[addr]; e != nil && !e.listed {
				delete(list, addr)
			}
		}
	}
	for addr, was := range m.members {
		if in, ok := listed[addr]; ok {
			m.said[addr] = in
		}
		in := m.ordered(m.said[addr])
		m.members[addr] = in
		if d := differences(was, in); d != "" {
			changes = append(changes, Change{Op: Changed, Instance: in, Was: was, Cause: CauseUpdated, Detail: d})
		}
	}
	return m.view(append(changes, leaving...), now)
}

// spare says whether the pool can do without those that the registry has as unfit. Those that went so before count, or
// a registry that turns against a pool would take it apart one by one.
func (m *Membership) spare(listed map[string]Instance) bool {
	maps.DeleteFunc(m.unfit, func(addr string, _ bool) bool {
		_, back := listed[addr]
		return back || !slices.ContainsFunc(m.rules.Providers, func(p string) bool { return m.skipped[p][addr] != "" })
	})
	good := 0
	for addr := range listed {
		if m.rules.Probe(addr) != Failing {
			good++
		}
	}
	return 2*good >= len(m.members)+len(m.unfit)
}

// mayGo says why a member that is not to be had from the lists may go now, "" when it must stay.
func (m *Membership) mayGo(addr string, anyListed, spare bool) (Cause, string) {
	if m.removed[addr] {
		return CauseTombstone, "removed by an operator"
	}
	if !anyListed {
		return "", ""
	}
	cause, detail := CauseExplicit, "no longer in the configuration"
	for _, name := range m.rules.Providers {
		e, why := m.lists[name][addr], m.skipped[name][addr]
		switch {
		case e == nil || e.reads > 0 && e.explicit:
		case e.reads == 0:
			return "", "" // nothing yet that counts: it was restored, or no provider has listed anything since
		case m.rules.Probe(addr) == Failing:
			cause, detail = CauseFailed, "gone from "+name+", and its own probe fails"
		case why == Maintenance:
			cause, detail = CauseMaintenance, "in maintenance, says "+name
		case why != "" && spare:
			cause, detail = CauseUnfit, why+", says "+name
		case !e.last.Before(e.first.Add(m.rules.ShrinkHold)):
			cause, detail = CauseHeld, fmt.Sprintf("gone from %s for %v, in %d reads", name, e.last.Sub(e.first).Round(time.Second), e.reads)
		default:
			return "", ""
		}
	}
	return cause, detail
}

// canDoWithout says whether somebody is left without those that leave, and passes its probe if one of them does.
func (m *Membership) canDoWithout(leaving []Change) bool {
	gone, loses := map[string]bool{}, false
	for _, c := range leaving {
		addr := c.Instance.Addr()
		gone[addr], loses = true, loses || m.rules.Probe(addr) == Passing
	}
	for addr := range m.members {
		if !gone[addr] && (!loses || m.rules.Probe(addr) == Passing) {
			return true
		}
	}
	return false
}

// spareOne takes the best member out of a list that would leave none to use: one whose probe passes, else the first.
func (m *Membership) spareOne(leaving []Change) []Change {
	slices.SortFunc(leaving, func(a, b Change) int { return strings.Compare(a.Instance.Addr(), b.Instance.Addr()) })
	spare := max(0, slices.IndexFunc(leaving, func(c Change) bool { return m.rules.Probe(c.Instance.Addr()) == Passing }))
	m.spared = leaving[spare].Instance.Addr()
	return slices.Delete(leaving, spare, spare+1)
}

func (m *Membership) view(changes []Change, now time.Time) (View, bool) {
	if len(changes) == 0 {
		return View{}, false
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Instance.Addr(), b.Instance.Addr()) })
	m.generation++
	return View{Generation: m.generation, Members: m.Members(), Changes: changes, At: now}, true
}

// Held is a member that no provider lists and that is still a member.
type Held struct {
	Addr string `json:"addr"`
	// Since is the first non-stale read that lacked it, zero when none has answered yet.
	Since time.Time `json:"since,omitzero"`
	// Due is when the hold ends.
	Due time.Time `json:"due,omitzero"`
	// Reads are the non-stale reads that lacked it.
	Reads int `json:"reads"`
	// Why says what keeps it.
	Why string `json:"why"`
}

// Held returns the members that no provider lists and that stay for now, ascending by Addr.
func (m *Membership) Held() []Held {
	listed := m.merged()
	var out []Held
	for _, in := range m.Members() {
		addr := in.Addr()
		if _, ok := listed[addr]; ok {
			continue
		}
		h := Held{Addr: addr, Why: "waits for its hold and one more read"}
		for _, list := range m.lists {
			if e := list[addr]; e != nil && e.first.After(h.Since) {
				h.Since, h.Due, h.Reads = e.first, e.first.Add(m.rules.ShrinkHold), e.reads
			}
		}
		switch {
		case len(listed) == 0 && len(m.skipped) == 0:
			h.Why = "no registry has been read since the start"
		case len(listed) == 0:
			h.Why = "no provider lists any broker"
		case addr == m.spared && len(m.members) == 1:
			h.Why = "last member"
		case addr == m.spared:
			h.Why = "nobody else passes the probe"
		case h.Reads == 0:
			h.Why = "waits for an answer of its provider"
		}
		out = append(out, h)
	}
	return out
}

// Next returns the providers that must read once more before the first held member can go, and when. ok is false when
// nothing waits for a read.
func (m *Membership) Next() (at time.Time, providers []string, ok bool) {
	listed := m.merged()
	if len(listed) == 0 {
		return time.Time{}, nil, false
	}
	for _, name := range m.rules.Providers {
		for addr, e := range m.lists[name] {
			due := e.first.Add(m.rules.ShrinkHold)
			_, shown := listed[addr]
			if e.listed || shown || e.reads == 0 || e.explicit || !e.last.Before(due) {
				continue
			}
			if !ok || due.Before(at) {
				at, providers, ok = due, nil, true
			}
			if due.Equal(at) && !slices.Contains(providers, name) {
				providers = append(providers, name)
			}
		}
	}
	return at, providers, ok
}
