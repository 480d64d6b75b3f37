package discovery

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// brokers makes instances of one-letter hosts: "a" is a:9092.
func brokers(names string) []Instance {
	var out []Instance
	for _, n := range strings.Fields(names) {
		out = append(out, Instance{ID: n, Host: n, Port: 9092, NodeID: -1, Weight: 1, Source: "reg"})
	}
	return out
}

func update(names string) Update { return Update{Provider: "reg", Instances: brokers(names)} }

func stale(u Update) Update    { u.Stale = true; return u }
func explicit(u Update) Update { u.Explicit = true; return u }
func from(name string, u Update) Update {
	u.Provider = name
	u.Instances = slices.Clone(u.Instances)
	for i := range u.Instances {
		u.Instances[i].Source = name
	}
	return u
}

// unfit adds entries that the registry has and that are not to be used.
func unfit(u Update, reason, names string) Update {
	for _, in := range brokers(names) {
		u.Skipped = append(u.Skipped, Skipped{ID: in.ID, Addr: in.Addr(), Reason: reason})
	}
	return u
}

func hosts(in []Instance) string {
	var out []string
	for _, i := range in {
		out = append(out, i.Host)
	}
	return strings.Join(out, " ")
}

// probes is what the probe says of a host: "a+" passes, "a-" fails.
type probes map[string]ProbeState

func (p probes) of(addr string) ProbeState { return p[strings.TrimSuffix(addr, ":9092")] }

func TestMembershipHoldsWhatTheRegistryTakesBack(t *testing.T) {
	failed := Update{Provider: "reg", Err: errTest}
	type step struct {
		at   int
		do   Update // a zero Update is a Tick
		want string // members after it
	}
	tests := []struct {
		name  string
		probe probes
		steps []step
	}{
		{name: "a newcomer is taken at once", steps: []step{
			{0, update("a"), "a"}, {1, update("a b"), "a b"}}},
		{name: "an empty answer never empties the pool", steps: []step{
			{0, update("a b"), "a b"}, {1, update(""), "a b"}, {61, update(""), "a b"}, {900, update(""), "a b"}}},
		{name: "the time of an empty registry does not count when it fills again", steps: []step{
			{0, update("a b c"), "a b c"}, {1, update(""), "a b c"}, {100, update(""), "a b c"}, {101, update("a"), "a b c"},
			{102, update("a b"), "a b c"}, {160, update("a b"), "a b c"}, {161, update("a b"), "a b"}}},
		{name: "nor does a hold that had begun before it was empty go on", steps: []step{
			{0, update("a b c"), "a b c"}, {1, update("a b"), "a b c"}, {2, update(""), "a b c"}, {100, update("a"), "a b c"},
			{101, update("a b c"), "a b c"}, {102, update("a"), "a b c"}, {162, update("a"), "a"}}},
		{name: "an empty answer drops not even who fails", probe: probes{"a": Failing, "b": Failing}, steps: []step{
			{0, update("a b"), "a b"}, {1, update(""), "a b"}, {200, update(""), "a b"}}},
		{name: "a failed read changes nothing and counts for nothing", steps: []step{
			{0, update("a b"), "a b"}, {1, failed, "a b"}, {2, update("a"), "a b"}, {62, failed, "a b"}, {70, failed, "a b"}, {71, update("a"), "a"}}},
		{name: "a removal is honoured by two reads a hold apart", steps: []step{
			{0, update("a b"), "a b"}, {1, update("a"), "a b"}, {60, update("a"), "a b"}, {61, update("a"), "a"}}},
		{name: "time alone removes nobody", steps: []step{
			{0, update("a b"), "a b"}, {1, update("a"), "a b"}, {600, Update{}, "a b"}}},
		{name: "stale reads remove nobody", steps: []step{
			{0, update("a b"), "a b"}, {1, stale(update("a")), "a b"}, {90, stale(update("a")), "a b"}, {91, update("a"), "a b"}, {151, stale(update("a")), "a b"}, {152, update("a"), "a"}}},
		{name: "a stale read brings newcomers", steps: []step{
			{0, update("a"), "a"}, {1, stale(update("b")), "a b"}}},
		{name: "who comes back starts a new hold", steps: []step{
			{0, update("a b"), "a b"}, {1, update("a"), "a b"}, {50, update("a b"), "a b"}, {55, update("a"), "a b"}, {62, update("a"), "a b"}, {115, update("a"), "a"}}},
		{name: "gone and failing its probe goes at once", probe: probes{"b": Failing}, steps: []step{
			{0, update("a b c"), "a b c"}, {1, update("a"), "a c"}}},
		{name: "failing its probe alone is no reason to go", probe: probes{"b": Failing}, steps: []step{
			{0, update("a b"), "a b"}, {100, update("a b"), "a b"}}},
		{name: "passing its probe delays nothing beyond the hold", probe: probes{"a": Passing, "b": Passing}, steps: []step{
			{0, update("a b"), "a b"}, {1, update("a"), "a b"}, {61, update("a"), "a"}}},
		{name: "critical goes at once while half of the pool is well", steps: []step{
			{0, update("a b c"), "a b c"}, {1, unfit(update("a b"), "critical", "c"), "a b"}, {2, update("a b c"), "a b c"}}},
		{name: "a registry that turns against the pool is held, also when it does so one by one", steps: []step{
			{0, update("a b c d"), "a b c d"}, {1, unfit(update("a b c"), "critical", "d"), "a b c"}, {2, unfit(update("a b"), "critical", "c d"), "a b"},
			{3, unfit(update("a"), "critical", "b c d"), "a b"}, {4, unfit(update(""), "critical", "a b c d"), "a b"},
			{5, unfit(update("a"), "critical", "b c d"), "a b"}, {64, unfit(update("a"), "critical", "b c d"), "a b"},
			{65, unfit(update("a"), "critical", "b c d"), "a"}}},
		{name: "critical is held while those that are left fail", probe: probes{"a": Failing, "b": Failing}, steps: []step{
			{0, update("a b c"), "a b c"}, {1, unfit(update("a b"), "critical", "c"), "a b c"}}},
		{name: "maintenance is an operator's word", steps: []step{
			{0, update("a b c"), "a b c"}, {1, unfit(update("a"), Maintenance, "b c"), "a"}, {2, unfit(update(""), Maintenance, "a b c"), "a"}}},
		{name: "a stale answer explains nothing", steps: []step{
			{0, update("a b c"), "a b c"}, {1, stale(unfit(update("a b"), Maintenance, "c")), "a b c"}}},
		{name: "an operator's own list is followed at once", steps: []step{
			{0, explicit(update("a b")), "a b"}, {1, explicit(update("a c")), "a c"}}},
		{name: "all replaced: the old ones stay for the hold", steps: []step{
			{0, update("a b"), "a b"}, {1, update("c d"), "a b c d"}, {61, update("c d"), "c d"}}},
		{name: "twice one address is one member, port 0 none", steps: []step{
			{0, Update{Provider: "reg", Instances: append(brokers("a a b"), Instance{Host: "z"})}, "a b"}}},
		{name: "a stranger's update is ignored", steps: []step{
			{0, update("a"), "a"}, {1, from("other", update("b")), "a"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := NewMembership(Rules{Providers: []string{"reg"}, Probe: tt.probe.of})
			last := ""
			for _, s := range tt.steps {
				var v View
				var changed bool
				if s.do.Provider == "" {
					v, changed = m.Tick(at(s.at))
				} else {
					v, changed = m.Apply(s.do, at(s.at))
				}
				got := hosts(m.Members())
				if got != s.want {
					t.Fatalf("at %d s the members are %q, want %q", s.at, got, s.want)
				}
				if changed != (got != last) {
					t.Fatalf("at %d s changed is %v from %q to %q", s.at, changed, last, got)
				}
				if changed && (hosts(v.Members) != got || len(v.Changes) == 0) {
					t.Fatalf("at %d s the view has members %q and %d changes", s.at, hosts(v.Members), len(v.Changes))
				}
				last = got
			}
		})
	}
}

func TestMembershipFollowsAProbeThatFailsWhileHeld(t *testing.T) {
	probe := probes{}
	m := NewMembership(Rules{Providers: []string{"reg"}, Probe: probe.of})
	m.Apply(update("a b"), at(0))
	m.Apply(update("a"), at(1))
	probe["b"] = Failing
	v, ok := m.Tick(at(2))
	if !ok || hosts(v.Members) != "a" || v.Changes[0].Cause != CauseFailed {
		t.Fatalf("got %v, %q, %v; want b gone as %s", ok, hosts(v.Members), v.Changes, CauseFailed)
	}
}

// However it is that brokers go, by a registry's hold, an operator's list or command, one that passes its probe stays for as
// long as nobody else does: those that are listed instead may be a mistake.
func TestMembershipKeepsTheLastThatPassesItsProbe(t *testing.T) {
	for name, goes := range map[string]func(m *Membership){
		"by the hold":           func(m *Membership) { m.Apply(update("c d"), at(1)); m.Apply(update("c d"), at(61)) },
		"by an operator's list": func(m *Membership) { m.Apply(explicit(update("c d")), at(1)) },
		"in maintenance":        func(m *Membership) { m.Apply(unfit(update("c d"), Maintenance, "a b"), at(1)) },
		"by operators' commands": func(m *Membership) {
			m.Apply(update("a b c d"), at(1))
			m.SetOrders(Orders{Removed: []string{"a:9092", "b:9092"}}, at(2))
		},
	} {
		probe := probes{"a": Failing, "b": Passing, "c": Failing}
		m := NewMembership(Rules{Providers: []string{"reg"}, Probe: probe.of})
		m.Apply(explicit(update("a b")), at(0))
		goes(m)
		if got := hosts(m.Members()); got != "b c d" {
			t.Fatalf("%s: %q", name, got)
		}
		if h := m.Held(); len(h) != 1 || h[0].Addr != "b:9092" || h[0].Why != "nobody else passes the probe" {
			t.Errorf("%s: held %+v", name, h)
		}
		probe["d"] = Passing
		if v, ok := m.Tick(at(70)); !ok || hosts(v.Members) != "c d" {
			t.Errorf("%s: %q once another one passes", name, hosts(m.Members()))
		}
	}
}

func TestMembershipTakesChangesAtOnceAndNamesThem(t *testing.T) {
	m := NewMembership(Rules{Providers: []string{"reg"}})
	m.Apply(update("a b"), at(0))
	u := update("a b c")
	u.Instances[0].Weight, u.Instances[0].Rack, u.Instances[0].NodeID, u.Instances[0].Warning = 5, "r1", 7, true
	v, ok := m.Apply(u, at(1))
	var lines []string
	for _, c := range v.Changes {
		lines = append(lines, c.String())
	}
	want := []string{
		"~ a:9092 (reg): weight 1 -> 5, rack none -> r1, node id -1 -> 7, warning false -> true",
		"+ c:9092 (reg): listed by reg",
	}
	if diff := cmp.Diff(want, lines); !ok || diff != "" {
		t.Fatalf("changed %v, lines differ (-want +got):\n%s", ok, diff)
	}
	if v.Generation != 2 || !v.At.Equal(at(1)) || v.Changes[0].Was.Weight != 1 {
		t.Errorf("generation %d at %v, was %+v", v.Generation, v.At, v.Changes[0].Was)
	}
	if _, again := m.Apply(u, at(2)); again {
		t.Error("the same answer again made a view")
	}
}

func TestMembershipMergesProvidersInTheirOrder(t *testing.T) {
	m := NewMembership(Rules{Providers: []string{"first", "second"}})
	a, b := from("first", update("a b")), from("second", update("b c"))
	a.Instances[1].Weight = 3
	b.Instances[0].Weight, b.Instances[0].Rack, b.Instances[0].NodeID = 9, "r2", 4
	m.Apply(b, at(0))
	m.Apply(a, at(0))
	want := []Instance{
		{ID: "a", Host: "a", Port: 9092, NodeID: -1, Weight: 1, Source: "first"},
		{ID: "b", Host: "b", Port: 9092, NodeID: 4, Rack: "r2", Weight: 3, Source: "first"},
		{ID: "c", Host: "c", Port: 9092, NodeID: -1, Weight: 1, Source: "second"},
	}
	if diff := cmp.Diff(want, m.Members()); diff != "" {
		t.Fatalf("members differ (-want +got):\n%s", diff)
	}
	// b goes only when both have taken it back, each for the whole hold.
	m.Apply(from("first", update("a")), at(10))
	m.Apply(from("first", update("a")), at(100))
	said := m.Members()
	v, changed := m.Apply(from("second", update("c")), at(101))
	if got := hosts(m.Members()); got != "a b c" {
		t.Fatalf("members %q before the second provider's hold is over", got)
	}
	if diff := cmp.Diff(said, m.Members()); changed || diff != "" {
		t.Errorf("who is held is no more what was last said of it: %v\n%s", v.Changes, diff)
	}
	m.Apply(from("second", update("c")), at(161))
	if got := hosts(m.Members()); got != "a c" {
		t.Fatalf("members %q after both holds", got)
	}
	// One provider that has nothing left does not empty its share while the hold lasts, nor ever without the other.
	m.Apply(from("second", update("")), at(170))
	m.Apply(from("second", update("")), at(231))
	if got := hosts(m.Members()); got != "a" {
		t.Fatalf("members %q after the second provider ended", got)
	}
}

func TestMembershipHonoursRemovalsByOperatorsButNotOfTheLast(t *testing.T) {
	m := NewMembership(Rules{Providers: []string{"reg"}, Probe: probes{"b": Passing}.of})
	m.Apply(update("a b c"), at(0))
	v, ok := m.SetOrders(Orders{Removed: []string{"c:9092"}}, at(1))
	if !ok || hosts(v.Members) != "a b" || v.Changes[0].Cause != CauseTombstone {
		t.Fatalf("got %v %q %v", ok, hosts(v.Members), v.Changes)
	}
	if _, ok := m.Apply(update("a b c"), at(2)); ok {
		t.Fatal("a registry brought a removed member back")
	}
	if v, _ := m.SetOrders(Orders{Removed: []string{"a:9092", "b:9092", "c:9092"}}, at(3)); hosts(v.Members) != "b" {
		t.Fatalf("members %q, want the passing one to stay as the last", hosts(v.Members))
	}
	if h := m.Held(); len(h) != 1 || h[0].Addr != "b:9092" {
		t.Fatalf("held %v", h)
	}
	if v, _ := m.SetOrders(Orders{}, at(4)); hosts(v.Members) != "a b c" {
		t.Fatalf("members %q after the orders were lifted", hosts(v.Members))
	}
}

// What an operator has said of a weight holds over every registry, for a member that is held too, until it is lifted.
func TestMembershipHonoursWeightsOfOperators(t *testing.T) {
	m := NewMembership(Rules{Providers: []string{"reg"}})
	weights := func() string {
		var out []string
		for _, in := range m.Members() {
			out = append(out, fmt.Sprintf("%s=%d", in.Host, in.Weight))
		}
		return strings.Join(out, " ")
	}
	m.Apply(update("a b c"), at(0))
	v, ok := m.SetOrders(Orders{Weights: map[string]int{"a:9092": 0, "b:9092": 5, "d:9092": 7}}, at(1))
	if !ok || weights() != "a=0 b=5 c=1" || len(v.Changes) != 2 || v.Changes[0].Cause != CauseUpdated {
		t.Fatalf("got %v %s %v", ok, weights(), v.Changes)
	}
	m.Apply(update("b c d"), at(2))
	if got := weights(); got != "a=0 b=5 c=1 d=7" {
		t.Fatalf("with a newcomer, and one that is held: %s", got)
	}
	if v, _ := m.SetOrders(Orders{Removed: []string{"b:9092"}, Weights: map[string]int{"b:9092": 3}}, at(3)); weights() != "a=1 c=1 d=1" || len(v.Changes) != 3 {
		t.Fatalf("after the weights were lifted and b was removed: %s, %v", weights(), v.Changes)
	}
}

func TestMembershipRestoresAndThenConfirms(t *testing.T) {
	m := NewMembership(Rules{Providers: []string{"reg"}})
	saved := append(brokers("a b"), from("gone", update("c")).Instances...)
	v, ok := m.Restore(saved, at(0))
	if !ok || hosts(v.Members) != "a b c" || v.Changes[0].Cause != CauseRestored {
		t.Fatalf("got %v %q %v", ok, hosts(v.Members), v.Changes)
	}
	if h := m.Held(); len(h) != 3 || h[0].Reads != 0 || h[0].Why != "no registry has been read since the start" {
		t.Fatalf("held %v, want all three to wait for an answer", h)
	}
	m.Apply(update("a"), at(1))
	if got := hosts(m.Members()); got != "a b c" {
		t.Fatalf("members %q at the first answer", got)
	}
	m.Apply(update("a"), at(61))
	if got := hosts(m.Members()); got != "a" {
		t.Fatalf("members %q after the hold", got)
	}
}

func TestMembershipSaysWhichReadItWaitsFor(t *testing.T) {
	m := NewMembership(Rules{Providers: []string{"reg"}, ShrinkHold: 30 * time.Second})
	m.Apply(update("a b c"), at(0))
	if _, _, ok := m.Next(); ok {
		t.Fatal("waits for a read while nothing is held")
	}
	m.Apply(update("a b"), at(5))
	m.Apply(update("a"), at(9))
	when, who, ok := m.Next()
	if !ok || !when.Equal(at(35)) || !slices.Equal(who, []string{"reg"}) {
		t.Fatalf("next %v %v %v, want 35 s", when, who, ok)
	}
	want := []Held{
		{Addr: "b:9092", Since: at(9), Due: at(39), Reads: 1, Why: "waits for its hold and one more read"},
		{Addr: "c:9092", Since: at(5), Due: at(35), Reads: 2, Why: "waits for its hold and one more read"},
	}
	if diff := cmp.Diff(want, m.Held()); diff != "" {
		t.Fatalf("held differs (-want +got):\n%s", diff)
	}
}

// Whatever providers, probes and operators say in whatever order, a view is whole, differs from the one before by what
// its changes name, is never empty, has all that is listed and not removed by an operator, and somebody who passes the probe
// if the one before had. Once all agree, the members are what is listed two holds later.
func TestMembershipHoldsTogetherInAnyOrderOfEvents(t *testing.T) {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom(strings.Fields("a b c d e")), 0, 5, rapid.ID)
	rapid.Check(t, func(t *rapid.T) {
		probe := probes{}
		m := NewMembership(Rules{Providers: []string{"p", "q"}, Probe: probe.of})
		now, listed, dead := 0, map[string]string{}, ""
		have := map[string]bool{}
		check := func(v View, changed bool) {
			got := hosts(m.Members())
			passes := func() bool {
				return slices.ContainsFunc(slices.Collect(maps.Keys(have)), func(h string) bool { return probe[h] == Passing })
			}
			passed := passes()
			defer func() {
				if passed && !passes() {
					t.Fatalf("members %q: nobody who passes is left", got)
				}
			}()
			for _, c := range v.Changes {
				if in := have[c.Instance.Host]; in == (c.Op == Added) {
					t.Fatalf("change %v to members %v", c, have)
				}
				if have[c.Instance.Host] = c.Op != Removed; c.Op == Removed {
					delete(have, c.Instance.Host)
				}
			}
			if want := strings.Join(slices.Sorted(maps.Keys(have)), " "); got != want || changed != (len(v.Changes) > 0) || changed && hosts(v.Members) != got {
				t.Fatalf("members %q, the changes add up to %q, the view has %q", got, want, hosts(v.Members))
			}
			if v.Generation > 0 && got == "" {
				t.Fatal("emptied")
			}
			for _, h := range strings.Fields(listed["p"] + " " + listed["q"]) {
				if !have[h] && !strings.Contains(dead, h) {
					t.Fatalf("%s is listed and no member of %q", h, got)
				}
			}
		}
		check(m.Restore(brokers(strings.Join(names.Draw(t, "restored"), " ")), at(0)))
		t.Repeat(map[string]func(*rapid.T){
			"answer": func(t *rapid.T) {
				p := rapid.SampledFrom([]string{"p", "q"}).Draw(t, "provider")
				what := strings.Join(names.Draw(t, "lists"), " ")
				u := unfit(from(p, update(what)), rapid.SampledFrom([]string{"critical", Maintenance}).Draw(t, "reason"), strings.Join(names.Draw(t, "unfit"), " "))
				u.Stale = rapid.Bool().Draw(t, "stale")
				u.Explicit = rapid.Bool().Draw(t, "explicit")
				if listed[p] = what; u.Stale {
					listed[p] = "" // what it listed before counts, too, but is not followed here
				}
				check(m.Apply(u, at(now)))
			},
			"failure": func(t *rapid.T) {
				check(m.Apply(Update{Provider: "p", Err: errTest}, at(now)))
			},
			"probe": func(t *rapid.T) {
				probe[rapid.SampledFrom(strings.Fields("a b c d e")).Draw(t, "host")] = ProbeState(rapid.IntRange(0, 2).Draw(t, "state"))
				check(m.Tick(at(now)))
			},
			"orders": func(t *rapid.T) {
				dead = strings.Join(names.Draw(t, "removed"), " ")
				var addrs []string
				for _, h := range strings.Fields(dead) {
					addrs = append(addrs, h+":9092")
				}
				weights := map[string]int{}
				for _, h := range names.Draw(t, "weighed") {
					weights[h+":9092"] = rapid.IntRange(0, 3).Draw(t, "weight")
				}
				check(m.SetOrders(Orders{Removed: addrs, Weights: weights}, at(now)))
			},
			"time": func(t *rapid.T) { now += rapid.IntRange(1, 90).Draw(t, "seconds") },
		})
		for _, h := range strings.Fields("a b c d e") {
			probe[h] = Passing
		}
		dead = ""
		check(m.SetOrders(Orders{}, at(now)))
		for range 3 {
			for p, lists := range map[string]string{"p": "a b", "q": "b c"} {
				listed[p] = lists
				check(m.Apply(from(p, update(lists)), at(now)))
			}
			now += 60
		}
		if got := hosts(m.Members()); got != "a b c" {
			t.Fatalf("members %q in the end", got)
		}
	})
}
