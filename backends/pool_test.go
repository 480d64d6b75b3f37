package backends

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// three is the usual pool: brokers 0, 1, 2 at these ports.
var three = []int{9092, 9093, 9094}

func serving(ports ...int) map[string]string {
	m := map[string]string{}
	for _, p := range ports {
		m[addr(p)] = "serving"
	}
	return m
}

// up starts a pool over the brokers at ports and waits until it is ready.
func (w *world) up(cfg Config, ports ...int) *Pool {
	w.t.Helper()
	p := w.start(cfg)
	w.registry.list(ports...)
	eventually(w.t, 2*time.Second, "ready", func() bool { ok, _ := p.Ready(); return ok })
	return p
}

func TestAPoolComesUpAndStaysFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		var all atomic.Int32
		c.ControlKey(3, func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if r := req.(*kmsg.MetadataRequest); r.Topics == nil {
				all.Add(1)
				if r.AllowAutoTopicCreation {
					t.Error("a refresh asks with auto-creation on")
				}
			}
			return nil, nil, false
		})
		p := w.start(Config{})
		if ok, why := p.Ready(); ok || w.now() != nil {
			t.Fatalf("ready with nothing known (%s)", why)
		}
		w.registry.list(three...)
		eventually(t, time.Second, "ready", func() bool { ok, _ := p.Ready(); return ok })
		if diff := cmp.Diff([]int32{0, 1, 2}, w.brokers()); diff != "" {
			t.Errorf("brokers (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(serving(three...), w.states()); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
		all.Store(0)
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			if age := p.Status().Snapshot.AgeSeconds; age > 1 {
				t.Fatalf("the snapshot is %.3f s old, max_age is 1 s", age)
			}
		}
		if n := all.Load(); n > 30*5/2 {
			t.Errorf("%d refreshes in 30 s, want one each half second", n)
		}
		s := p.Status()
		if s.Snapshot.Generation != 1 || len(w.built()) != 1 {
			t.Errorf("generation %d and %d builds though nothing changed, want 1 and 1", s.Snapshot.Generation, len(w.built()))
		}
		if s.ClusterID != "A" || s.ClusterIDFrom != "majority" || s.Snapshot.Topics != 2 || s.Snapshot.Partitions != 4 {
			t.Errorf("status: %+v", s)
		}
	})
}

// emptyLists makes node answer as a broker that is starting (KAFKA-7924).
func emptyLists(c *kfake.Cluster, node int32) (end func()) {
	return lie(c, 3, []int32{node}, func(req kmsg.Request) *kmsg.MetadataResponse {
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		resp.ControllerID = -1
		return resp
	})
}

// Field case BL-09.
func TestAStartingBrokerWithAnEmptyList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		p := w.up(Config{}, three...)
		// After the third time it has to wait, as one that comes and goes.
		for _, back := range []time.Duration{5 * time.Second, 5 * time.Second, 50 * time.Second} {
			end := emptyLists(c, 0)
			eventually(t, 3*time.Second, "the broker is out", func() bool { return w.states()[addr(9092)] == "down no_brokers" })
			for range 50 {
				time.Sleep(100 * time.Millisecond)
				if got := w.brokers(); len(got) != 3 {
					t.Fatalf("lookups are answered with brokers %v", got)
				}
				if age := p.Status().Snapshot.AgeSeconds; age > 1 {
					t.Fatalf("the snapshot is %.3f s old", age)
				}
			}
			end()
			eventually(t, back, "the broker is back by itself", func() bool { return w.states()[addr(9092)] == "serving" })
		}
	})
}

// Field case BL-09: nothing is known yet, and the only broker has nothing to tell.
func TestAColdStartWithOnlyAStartingBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		end := emptyLists(c, 0)
		p := w.start(Config{ClusterID: "A"})
		w.registry.list(9092)
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			if w.now() != nil {
				t.Fatal("lookups are answered")
			}
		}
		if ok, why := p.Ready(); ok || !strings.Contains(why, "no_brokers") {
			t.Errorf("ready: %v, %q", ok, why)
		}
		end()
		eventually(t, 3*time.Second, "it serves", func() bool { return len(w.brokers()) == 3 })
	})
}

// Field case BL-10, with a second cluster of lower versions at the address of a broker that was stopped.
func TestAnAddressThatBelongsToAnotherClusterNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.cluster("A", three)
		p := w.up(Config{}, three...)
		keys := p.Status().Snapshot.APIKeys
		if r := find(w, 9094); r.Err != nil || r.Broker != addr(9094) {
			t.Fatalf("a forward that sticks to the broker: %+v", r)
		}

		if err := a.RemoveNode(2); err != nil {
			t.Fatal(err)
		}
		w.cut(9094)
		b := w.cluster("B", []int{19092, 19093, 9094})
		var forwarded atomic.Int32
		b.ControlKey(10, func(kmsg.Request) (kmsg.Response, error, bool) {
			b.KeepControl()
			forwarded.Add(1)
			return nil, nil, false
		})
		b.ControlKey(18, func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.KeepControl()
			return tableUpTo(req, 0, 9, 1, 11, 3, 9), nil, true
		})
		for range 20 { // before any probe could have told
			find(w, 9094)
		}
		eventually(t, 1100*time.Millisecond, "quarantined", func() bool { return w.states()[addr(9094)] == "quarantined wrong_cluster" })
		for range 100 {
			time.Sleep(20 * time.Millisecond)
			find(w, 9094)
			if set := w.now(); set.Snapshot().ClusterID != "A" {
				t.Fatal("lookups are answered with cluster B's view")
			}
		}
		if n := forwarded.Load(); n != 0 {
			t.Errorf("%d forwards reached the other cluster", n)
		}
		if n := p.Status().Snapshot.APIKeys; n != keys {
			t.Errorf("%d keys in the overlap, %d before: the foreign broker counts", n, keys)
		}
		alarms := strings.Join(p.Status().Alarms, "\n")
		if !strings.Contains(alarms, `B`) || !strings.Contains(alarms, `A`) || !strings.Contains(alarms, addr(9094)) {
			t.Errorf("the alarm does not name the broker and both ids: %q", alarms)
		}
	})
}

// tableUpTo is an ApiVersions answer with few keys.
func tableUpTo(req kmsg.Request, keys ...int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 18, MaxVersion: 3}}
	for i := 0; i+1 < len(keys); i += 2 {
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: keys[i], MaxVersion: keys[i+1]})
	}
	return resp
}

// Field case BL-10: at the first start the first answer does not decide.
func TestTheClusterIDIsWhatMostMembersSay(t *testing.T) {
	for _, c := range []struct {
		name    string
		members []int
		config  string
		want    string
		from    string
	}{
		{"most say A", []int{9092, 9093, 19092}, "", "A", "majority"},
		{"most say B", []int{9092, 19092, 19093}, "", "B", "majority"},
		{"a tie", []int{9092, 9093, 19092, 19093}, "", "", ""},
		{"a tie, and the configuration decides", []int{9092, 9093, 19092, 19093}, "B", "B", "config"},
		{"one of three answers", []int{9092, 1, 2}, "", "A", "majority"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.cluster("A", three)
				w.cluster("B", []int{19092, 19093, 19094})
				p := w.start(Config{ClusterID: c.config})
				w.registry.list(c.members...)
				time.Sleep(5 * time.Second)
				s := p.Status()
				if s.ClusterID != c.want || s.ClusterIDFrom != c.from {
					t.Errorf("cluster id %q from %q, want %q from %q", s.ClusterID, s.ClusterIDFrom, c.want, c.from)
				}
				for _, in := range w.built() {
					if in.Snapshot.ClusterID != c.want {
						t.Errorf("answers were built from cluster %q", in.Snapshot.ClusterID)
					}
				}
				if c.want != "" {
					return
				}
				if ok, why := p.Ready(); ok || !strings.Contains(why, "A (") || !strings.Contains(why, "B (") {
					t.Errorf("ready: %v, %q: both ids with their brokers are due", ok, why)
				}
			})
		})
	}
}

func TestAnswersEndAtMaxStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		p := w.up(Config{MaxStale: 10 * time.Second}, three...)
		c.Close()
		time.Sleep(8 * time.Second)
		if ok, why := p.Ready(); w.now() == nil || !ok {
			t.Fatalf("not answered after 8 s, max_stale is 10 s (%s)", why)
		}
		time.Sleep(3 * time.Second)
		if w.now() != nil {
			t.Error("still answered after 11 s, max_stale is 10 s")
		}
		if ok, why := p.Ready(); ok || !strings.Contains(why, "max_stale is 10s") {
			t.Errorf("ready: %v, %q", ok, why)
		}
		w.cluster("A", three)
		eventually(t, 4*time.Second, "answered again", func() bool { return w.now() != nil })
		if n := w.logs.FilterMessageSnippet("lookups are not answered").Len(); n != 1 {
			t.Errorf("the end of answers was logged %d times", n)
		}
	})
}

// A member of weight 0 heads no answer and gets no new forward, keeps what sticks to it, and stays in the view: health
// steers whom kvip asks, never what Metadata says.
func TestADrainingMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", three)
		p := w.up(Config{}, three...)
		w.registry.list(-9092, 9093, 9094)
		eventually(t, time.Second, "draining", func() bool { return w.states()[addr(9092)] == "draining" })
		if diff := cmp.Diff([]int32{0, 1, 2}, w.brokers()); diff != "" {
			t.Errorf("brokers (-want +got):\n%s", diff)
		}
		builds := w.built()
		if diff := cmp.Diff([]int32{1, 2}, builds[len(builds)-1].Heads); diff != "" {
			t.Errorf("heads (-want +got):\n%s", diff)
		}
		for range 30 {
			if r := find(w, 0); r.Err != nil || r.Broker == addr(9092) {
				t.Fatalf("a new forward: %+v", r)
			}
		}
		if r := find(w, 9092); r.Err != nil || r.Broker != addr(9092) {
			t.Errorf("a forward that sticks: %+v", r)
		}
		w.registry.list(-9092, -9093, -9094)
		eventually(t, time.Second, "all draining", func() bool { return p.Status().Members[2].State == "draining" })
		if r := find(w, 0); r.Err != nil {
			t.Errorf("with nothing but draining members: %v", r.Err)
		}
	})
}

// A member of another listener is told by the addresses that it gives.
func TestAMemberOnAnotherListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		lie(c, 3, []int32{2}, func(req kmsg.Request) *kmsg.MetadataResponse {
			resp := truth3(c, req.(*kmsg.MetadataRequest), 0, 1, 2)
			for i := range resp.Brokers {
				resp.Brokers[i].Port += 10_000
			}
			resp.Brokers[2].Port = 9094
			return resp
		})
		p := w.up(Config{}, three...)
		if got := w.states()[addr(9094)]; got != "quarantined other_listener" {
			t.Errorf("its state is %q", got)
		}
		time.Sleep(10 * time.Second)
		for _, b := range w.now().Snapshot().Brokers {
			if b.Port > 10_000 {
				t.Errorf("node %d is handed out with the other listener's port %d", b.NodeID, b.Port)
			}
		}
		if len(p.Status().Alarms) != 1 {
			t.Errorf("alarms: %q", p.Status().Alarms)
		}
	})
}

// The same broker under two registered addresses serves once.
func TestABrokerThatIsRegisteredTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", three)
		p := w.start(Config{})
		u := update(three...)
		twin := u.Instances[1]
		twin.Host, twin.NodeID = "127.0.0.1", 1
		u.Instances = append(u.Instances, twin)
		w.registry.updates <- u
		eventually(t, 2*time.Second, "ready", func() bool { ok, _ := p.Ready(); return ok })
		time.Sleep(2 * time.Second)
		want := serving(three...)
		want["127.0.0.1:9093"] = "quarantined duplicate_node"
		if diff := cmp.Diff(want, w.states()); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
	})
}

// A refresh of a slow cluster stretches the age instead of keeping brokers busy.
func TestASlowClusterIsAskedLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		var all atomic.Int32
		c.ControlKey(3, func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if req.(*kmsg.MetadataRequest).Topics == nil {
				all.Add(1)
				c.SleepControl(func() { time.Sleep(800 * time.Millisecond) })
			}
			return nil, nil, false
		})
		p := w.start(Config{})
		w.registry.list(three...)
		eventually(t, 10*time.Second, "ready", func() bool { ok, _ := p.Ready(); return ok })
		time.Sleep(time.Minute)
		s := p.Status().Snapshot
		if s.EffectiveMaxAgeSeconds < 4 || s.EffectiveMaxAgeSeconds > 5 {
			t.Errorf("the effective max_age is %v s for refreshes of 0.8 s, want 4 s", s.EffectiveMaxAgeSeconds)
		}
		all.Store(0)
		time.Sleep(time.Minute)
		if n := all.Load(); n > 40 {
			t.Errorf("%d refreshes in a minute, want some 30", n)
		}
		if s := p.Status().Snapshot; !s.Fresh {
			t.Errorf("%+v", s)
		}
	})
}
