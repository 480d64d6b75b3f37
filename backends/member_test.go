package backends

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
)

// An identity fault counts at once, whatever the fall, and until a probe passes; others wait for the scheduler's verdict.
func TestVerdictsBecomeStates(t *testing.T) {
	type step struct {
		reason healthcheck.Reason
		health healthcheck.State
		want   string
	}
	for name, steps := range map[string][]step{
		"timeouts":        {{"", healthcheck.Up, "serving"}, {probe.ReasonTimeout, healthcheck.Up, "serving"}, {probe.ReasonTimeout, healthcheck.Down, "down timeout"}, {"", healthcheck.Down, "down"}, {"", healthcheck.Up, "serving"}},
		"another node":    {{"", healthcheck.Up, "serving"}, {probe.ReasonWrongNode, healthcheck.Up, "quarantined wrong_node"}, {probe.ReasonTimeout, healthcheck.Up, "quarantined wrong_node"}, {"", healthcheck.Up, "serving"}},
		"a controller":    {{probe.ReasonController, healthcheck.Down, "quarantined controller"}},
		"another cluster": {{"", healthcheck.Up, "serving"}, {probe.ReasonWrongCluster, healthcheck.Up, "quarantined wrong_cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(discovery.Instance{Host: "b", Port: 9092, NodeID: -1, Weight: 1})
			if s, _, _ := m.judge("A"); s != Unknown {
				t.Errorf("unprobed: %s", s)
			}
			for i, st := range steps {
				m.heard(healthcheck.Event{Verdict: healthcheck.Verdict{Reason: st.reason}, State: st.health}, "A")
				state, reason, _ := m.judge("A")
				got := string(state)
				if reason != "" {
					got += " " + string(reason)
				}
				if got != st.want {
					t.Errorf("after verdict %d: %q, want %q", i, got, st.want)
				}
			}
			m.inst.Weight = 0
			if s, _, _ := m.judge("A"); s == Serving {
				t.Error("it serves with weight 0")
			}
		})
	}
}

// Whose tables the pool's has to be true of.
func TestWhoseTablesCount(t *testing.T) {
	p, err := newPool(Config{Name: "orders", ClusterID: "A"}, []discovery.Provider{newRegistry()}, nil, nil, parts{})
	if err != nil {
		t.Fatal(err)
	}
	w := p.writer
	apis := func(hi int16) *snapshot.APIs {
		return &snapshot.APIs{Keys: []kmsg.ApiVersionsResponseApiKey{{ApiKey: 0, MaxVersion: hi}}}
	}
	w.cur = started(t).cur // lists 0, 1, 2
	w.sorted = []*member{
		{addr: "serving", nodeID: 0, state: Serving, apis: apis(13)},
		{addr: "down and not listed", nodeID: 7, state: Down, apis: apis(12)},
		{addr: "draining", nodeID: 1, state: Draining, apis: apis(11)},
		{addr: "never answered", nodeID: -1, state: Down},
		{addr: "another cluster's now, and listed", nodeID: 2, state: Quarantined, apis: apis(10)},
		{addr: "another cluster's now, and not listed", nodeID: 8, state: Quarantined, apis: apis(3)},
	}
	w.observed[2] = &observed{apis: apis(9)}
	w.observed[9] = &observed{apis: apis(2)} // not listed any more
	got := map[int16]bool{}
	for _, a := range w.tables() {
		got[a.Keys[0].MaxVersion] = true
	}
	for hi, want := range map[int16]bool{13: true, 12: true, 11: true, 10: true, 3: false, 9: true, 2: false} {
		if got[hi] != want {
			t.Errorf("the table up to %d counts: %v, want %v", hi, got[hi], want)
		}
	}
}

// A member that the snapshot does not list may get forwards, and heads no list of brokers that lacks it.
func TestOnlyListedBrokersHeadLists(t *testing.T) {
	p, err := newPool(Config{Name: "orders", ClusterID: "A"}, []discovery.Provider{newRegistry()}, nil, nil, parts{})
	if err != nil {
		t.Fatal(err)
	}
	w := p.writer
	w.cur = started(t).cur // lists 0, 1, 2
	w.sorted = []*member{{addr: "listed", nodeID: 1, state: Serving}, {addr: "not listed", nodeID: 7, state: Serving}, {addr: "out", nodeID: 2, state: Ejected}}
	if heads := w.listedHeads(); len(heads) != 1 || heads[0].NodeID != 1 {
		t.Errorf("heads %+v, want node 1", heads)
	}
}

// A broker that is not known to be of this cluster says nothing about it.
func TestTablesOfForeignBrokersAreNotTaken(t *testing.T) {
	table := &snapshot.APIs{}
	for _, c := range []struct {
		name string
		res  probe.Result
		want bool
	}{
		{"of this cluster", probe.Result{APIs: table, Listed: true, ClusterID: "A"}, true},
		{"of another", probe.Result{APIs: table, Listed: true, ClusterID: "B"}, false},
		{"that did not say", probe.Result{APIs: table}, false},
		{"that is starting", probe.Result{APIs: table, Listed: true}, false},
	} {
		m := newMember(discovery.Instance{Host: "b", Port: 9092, NodeID: -1, Weight: 1})
		m.clusterID = "A" // said on an earlier connection
		m.result.Store(&c.res)
		m.heard(healthcheck.Event{State: healthcheck.Up}, "A")
		if got := m.apis != nil; got != c.want {
			t.Errorf("a broker %s: its table is taken %v, want %v", c.name, got, c.want)
		}
	}
}

// The verdict of a probe that was replaced, because the registry's node id changed, may still be on its way.
func TestAVerdictOfAReplacedProbe(t *testing.T) {
	p, err := newPool(Config{Name: "orders", ClusterID: "A"}, []discovery.Provider{newRegistry()}, nil, nil, parts{})
	if err != nil {
		t.Fatal(err)
	}
	w := p.writer
	w.membership(discovery.View{Members: []discovery.Instance{{Host: "b", Port: 9092, NodeID: -1, Weight: 1}}})
	old := w.sorted[0].checker
	w.membership(discovery.View{Members: []discovery.Instance{{Host: "b", Port: 9092, NodeID: 5, Weight: 1}}})
	m := w.sorted[0]
	w.probed(healthcheck.Event{Target: m.addr, Checker: old, State: healthcheck.Up})
	if m.health != healthcheck.Unknown {
		t.Error("the old probe's verdict counts")
	}
	w.probed(healthcheck.Event{Target: m.addr, Checker: m.checker, State: healthcheck.Up})
	if m.health != healthcheck.Up {
		t.Error("the new probe's verdict does not count")
	}
}

// Who lists the brokers elsewhere than the view was asked on another listener, unless most do: then the view is old. One
// broker that moved is no other listener.
func TestWhoIsOnAnotherListener(t *testing.T) {
	at := func(ports ...int32) (list []kmsg.MetadataResponseBroker) {
		for i, port := range ports {
			list = append(list, kmsg.MetadataResponseBroker{NodeID: int32(i), Host: "b", Port: port})
		}
		return list
	}
	inside, outside := at(1, 2, 3), at(11, 12, 13)
	for name, c := range map[string]struct {
		lists [][]kmsg.MetadataResponseBroker
		want  string // Q for quarantined
	}{
		"one of three":   {[][]kmsg.MetadataResponseBroker{inside, outside, inside}, ".Q."},
		"one of two":     {[][]kmsg.MetadataResponseBroker{inside, outside}, ".Q"},
		"two of three":   {[][]kmsg.MetadataResponseBroker{outside, outside, inside}, "..."},
		"a broker moved": {[][]kmsg.MetadataResponseBroker{inside, at(1, 2, 13), inside}, "..."},
		"two moved":      {[][]kmsg.MetadataResponseBroker{inside, at(1, 12, 13), inside}, ".Q."},
	} {
		var members []*member
		for i, list := range c.lists {
			members = append(members, &member{addr: "b", nodeID: int32(i), state: Serving, brokers: list})
		}
		crossExamine(members, &snapshot.Snapshot{Brokers: inside})
		got := ""
		for _, m := range members {
			got += map[bool]string{true: "Q", false: "."}[m.state == Quarantined && m.reason == reasonOtherListener]
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
