package backends

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var six = []int{9092, 9093, 9094, 9095, 9096, 9097}

func TestASlowBrokerIsEjectedAndComesBackByTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", six)
		p := w.up(Config{}, six...)
		w.slow(9092, 150*time.Millisecond) // a probe is two requests
		eventually(t, 15*time.Second, "ejected", func() bool { return w.states()[addr(9092)] == "ejected latency" })
		for i := range 200 {
			if r := findAs(w, uint64(i)*0x9e3779b97f4a7c15); r.Err != nil || r.Broker == addr(9092) {
				t.Fatalf("a forward went to %s (%v)", r.Broker, r.Err)
			}
		}
		if got, err := gathered(w, "kvip_backend_state{broker=localhost:9092,pool=orders,state=ejected}"); err != nil || got != 1 {
			t.Errorf("the metric is %v (%v)", got, err)
		}
		if got := w.brokers(); !slices.Contains(got, 0) {
			t.Errorf("lookups hide the broker: %v", got)
		}
		for _, in := range w.built()[len(w.built())-1:] {
			if slices.Contains(in.Heads, 0) {
				t.Error("it heads broker lists")
			}
		}
		e := p.Explain(netip.MustParseAddrPort("192.0.2.1:0"))
		if len(e.Skipped) != 1 || e.Skipped[0].Broker != addr(9092) || !strings.Contains(e.Skipped[0].Why, "300 ms") {
			t.Errorf("the explanation: %+v", e)
		}
		w.slow(9092, 0)
		if r := find(w, 9092); r.Err != nil || r.Broker == addr(9092) {
			t.Errorf("a connection that sticks to it has its forward carried by %s (%v)", r.Broker, r.Err)
		}
		eventually(t, 40*time.Second, "on trial", func() bool { return w.states()[addr(9092)] == "trial latency" })
		to := 0
		for i := range 3000 {
			if r := findAs(w, uint64(i)*0x9e3779b97f4a7c15); r.Broker == addr(9092) {
				to++
			}
		}
		if to < 25 || to > 75 {
			t.Errorf("on trial it got %d of 3000 forwards, want a tenth of a sixth", to)
		}
		in, heads := w.built()[len(w.built())-1], 0
		for i := range 3000 {
			if in.Heads[in.Pick(uint64(i)*0x9e3779b97f4a7c15)] == 0 {
				heads++
			}
		}
		if heads < 25 || heads > 75 {
			t.Errorf("on trial it heads %d of 3000 lists, want a tenth of a sixth", heads)
		}
		eventually(t, 20*time.Second, "serving", func() bool { return w.states()[addr(9092)] == "serving" })
		share := func() float64 { return p.Status().Members[0].SharePercent }
		if got := share(); got > 20 {
			t.Errorf("its share is %.0f%% at once", got)
		}
		eventually(t, 11*time.Second, "its whole share", func() bool { return share() == 100 })
	})
}

// How long it was out does not count against a broker that is back: the probe has judged that already.
func TestABrokerIsBackAtOnceHoweverLongItWasOut(t *testing.T) {
	for name, out := range map[string]func(w *world, c *kfake.Cluster) (end func()){
		"down no_brokers": func(_ *world, c *kfake.Cluster) func() { return emptyLists(c, 0) },
		"quarantined wrong_node": func(w *world, _ *kfake.Cluster) func() {
			u := update(three...)
			u.Instances[0].NodeID = 7
			w.registry.updates <- u
			return func() { w.registry.list(three...) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				c := w.cluster("A", three)
				w.up(Config{}, three...)
				time.Sleep(20 * time.Second)
				end := out(w, c)
				eventually(t, 4*time.Second, name, func() bool { return w.states()[addr(9092)] == name })
				time.Sleep(time.Minute)
				end()
				eventually(t, 4*time.Second, "serving", func() bool { return w.states()[addr(9092)] == "serving" })
				for range 300 {
					time.Sleep(100 * time.Millisecond)
					if got := w.states()[addr(9092)]; got != "serving" {
						t.Fatalf("it is %s after it had been back", got)
					}
				}
			})
		})
	}
}

// A broker that is cut off from the controller passes its probe and does not know that the cluster has fenced it.
func TestABrokerThatTheClusterHasFencedIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		p := w.up(Config{}, three...)
		fence := func(ids ...int32) (end func()) {
			return lie(c, 60, []int32{0, 1, 2}, func(req kmsg.Request) *kmsg.DescribeClusterResponse {
				resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
				resp.ClusterID = "A"
				for i, port := range three {
					resp.Brokers = append(resp.Brokers, kmsg.DescribeClusterResponseBroker{
						NodeID: int32(i), Host: "localhost", Port: int32(port), IsFenced: slices.Contains(ids, int32(i)),
					})
				}
				return resp
			})
		}
		end := fence(1)
		eventually(t, 2*time.Second, "fenced", func() bool { return w.states()[addr(9093)] == "ejected fenced" })
		for i := range 100 {
			if r := findAs(w, uint64(i)*0x9e3779b97f4a7c15); r.Err != nil || r.Broker == addr(9093) {
				t.Fatalf("a forward went to %s (%v)", r.Broker, r.Err)
			}
		}
		e := p.Explain(netip.MustParseAddrPort("192.0.2.1:0"))
		if len(e.Skipped) != 1 || !strings.HasPrefix(e.Skipped[0].Why, "ejected: the cluster has fenced it") {
			t.Errorf("the explanation: %+v", e.Skipped)
		}
		end()
		eventually(t, 2*time.Second, "serving", func() bool { return w.states()[addr(9093)] == "serving" })
		// One broker that says so of most is itself cut off.
		defer fence(1, 2)()
		time.Sleep(3 * time.Second)
		for broker, state := range w.states() {
			if state != "serving" {
				t.Errorf("%s is %s while most are said to be fenced", broker, state)
			}
		}
	})
}

// A broker whose probe passes on its kept connection, and that takes no new ones, is told by forwards' connects.
func TestConnectsThatFailEject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", three)
		w.up(Config{}, three...)
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		w.spoil = map[string]func(net.Conn) net.Conn{addr(9092): func(c net.Conn) net.Conn {
			_ = c.Close()
			return c
		}}
		w.mu.Unlock()
		for i := uint64(0); w.states()[addr(9092)] != "ejected errors"; i++ {
			if i > 400 {
				t.Fatalf("after %d forwards: %v", i, w.states())
			}
			if r := findAs(w, i*0x9e3779b97f4a7c15); r.Err != nil {
				t.Fatal(r.Err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// What is in flight at a broker reaches the policy, also at one that has been away meanwhile.
func TestThePolicySeesWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		p := w.up(Config{Policy: "same-queue", SlowStart: -1}, three...)
		for range 2 {
			w.slow(9092, 150*time.Millisecond)
			busy := make(chan struct{})
			go func() {
				defer close(busy)
				find(w, 9092)
			}()
			time.Sleep(10 * time.Millisecond)
			for i := range 50 {
				if r := findAs(w, uint64(i)); r.Err != nil || r.Broker == addr(9092) {
					t.Fatalf("a forward went to %s (%v), which alone has one in flight", r.Broker, r.Err)
				}
			}
			<-busy
			w.slow(9092, 0)
			end := emptyLists(c, 0)
			eventually(t, 5*time.Second, "down", func() bool { return w.states()[addr(9092)] == "down no_brokers" })
			end()
			eventually(t, 5*time.Second, "back", func() bool { return w.states()[addr(9092)] == "serving" })
		}
		for _, m := range p.view.Load().forwardable {
			if n := m.Load.Load(); n != 0 {
				t.Errorf("%s has a load of %d with nothing in flight", m.Addr, n)
			}
		}
	})
}

// Forwards that fail count only when it is the connect that fails: what comes after a client's bytes may be their doing.
func TestWhatAClientSendsEjectsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", six)
		w.up(Config{}, six...)
		// Every broker hangs up on this request, as on one that it cannot read.
		c.ControlKey(10, func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return nil, errors.New("cannot be read"), true
		})
		for range 100 {
			for range 20 {
				find(w, 9092)
			}
			time.Sleep(100 * time.Millisecond)
			for broker, state := range w.states() {
				if state != "serving" {
					t.Fatalf("%s is %s", broker, state)
				}
			}
		}
	})
}

func TestABrokerThatIsNewToAServingPoolStartsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", six)
		p := w.up(Config{}, 9092, 9093)
		time.Sleep(2 * time.Second)
		w.registry.list(9092, 9093, 9094)
		eventually(t, 3*time.Second, "in use", func() bool { return w.states()[addr(9094)] == "serving" })
		for _, m := range p.Status().Members {
			if m.SharePercent != 100 {
				t.Errorf("%s has %.0f%% of its share in a pool that is new as a whole", m.Broker, m.SharePercent)
			}
		}
		time.Sleep(20 * time.Second)
		shares := func() (shares []float64) {
			for _, m := range p.Status().Members {
				shares = append(shares, m.SharePercent)
			}
			return shares
		}
		w.registry.list(9092, 9093, 9094, 9095)
		eventually(t, 3*time.Second, "in use", func() bool { return w.states()[addr(9095)] == "serving" })
		if got := shares(); got[0] != 100 || got[3] > 10 {
			t.Errorf("shares are %v", got)
		}
		time.Sleep(5 * time.Second)
		if got := shares(); got[3] < 40 || got[3] > 60 {
			t.Errorf("shares are %v after half the time", got)
		}
		time.Sleep(6 * time.Second)
		if got := shares(); got[3] != 100 {
			t.Errorf("shares are %v after the time", got)
		}
		// Where most are new there is nobody to take over from.
		w.registry.list(9092)
		time.Sleep(20 * time.Second)
		w.registry.list(six...)
		eventually(t, 3*time.Second, "in use", func() bool { return len(w.states()) == 6 && w.states()[addr(9097)] == "serving" })
		for _, m := range p.Status().Members {
			if m.SharePercent != 100 {
				t.Errorf("%s has %.0f%% of its share while most are new", m.Broker, m.SharePercent)
			}
		}
	})
}

// With fewer than half of the brokers up, those that pass are asked first, and the others rather than nobody.
func TestThePoolInNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		p := w.up(Config{}, three...)
		ends := []func(){emptyLists(c, 0), emptyLists(c, 1)}
		eventually(t, 5*time.Second, "in need", func() bool { return p.Status().InNeed })
		for i := range 100 {
			if r := findAs(w, uint64(i)*0x9e3779b97f4a7c15); r.Err != nil || r.Broker != addr(9094) {
				t.Fatalf("a forward went to %s (%v) while 9094 passes", r.Broker, r.Err)
			}
		}
		if n := p.Status().Forwards.ToFailing; n != 0 {
			t.Errorf("%d forwards went to brokers that fail", n)
		}
		ends = append(ends, emptyLists(c, 2))
		eventually(t, 5*time.Second, "all fail", func() bool { return w.states()[addr(9094)] == "down no_brokers" })
		if r := findAs(w, 1); r.Err != nil {
			t.Errorf("nobody is asked: %v", r.Err)
		}
		if got, err := gathered(w, "kvip_pool_in_need{pool=orders}"); err != nil || got != 1 {
			t.Errorf("kvip_pool_in_need is %v (%v)", got, err)
		}
		if got, err := gathered(w, "kvip_forward_to_failing_total{pool=orders}"); err != nil || got < 1 {
			t.Errorf("kvip_forward_to_failing_total is %v (%v)", got, err)
		}
		if alarms := strings.Join(p.Status().Alarms, "\n"); !strings.Contains(alarms, "fewer than half") {
			t.Errorf("alarms: %q", alarms)
		}
		for _, end := range ends {
			end()
		}
		eventually(t, 10*time.Second, "well again", func() bool { return !p.Status().InNeed })
	})
}

// Half of a pool is no need, fewer than half is; brokers that were drained and then stopped do not count.
func TestHalfOfThePoolIsNoNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", six)
		p := w.up(Config{}, 9092, 9093, 9094, 9095)
		w.registry.list(9092, 9093, 9094, 9095, -9096, -9097)
		defer emptyLists(c, 4)()
		defer emptyLists(c, 5)()
		defer emptyLists(c, 0)()
		defer emptyLists(c, 1)()
		eventually(t, 5*time.Second, "two are down", func() bool {
			s := w.states()
			return s[addr(9092)] == "down no_brokers" && s[addr(9093)] == "down no_brokers"
		})
		time.Sleep(2 * time.Second)
		if p.Status().InNeed {
			t.Error("two of four pass, and the pool is in need")
		}
		defer emptyLists(c, 2)()
		eventually(t, 5*time.Second, "in need", func() bool { return p.Status().InNeed })
	})
}

// A share that grows begins at a tenth, whatever the time, and ends with all of it.
func TestAShareGrowsFromATenth(t *testing.T) {
	for _, c := range []struct {
		start, since time.Duration
		want         int32
	}{
		{10 * time.Second, 0, 100}, {10 * time.Second, 5 * time.Second, 500}, {10 * time.Second, 10 * time.Second, 1000},
		{10 * time.Second, time.Hour, 1000}, {time.Hour, time.Second, 100}, {time.Hour, 6*time.Minute + 4*time.Second, 101}, {-1, 0, 1000},
	} {
		w := &writer{p: &Pool{cfg: Config{SlowStart: c.start}}}
		begun := time.Now()
		if got := w.grown(&member{rising: begun}, begun.Add(c.since)); got != c.want {
			t.Errorf("%v of %v: %d thousandths, want %d", c.since, c.start, got, c.want)
		}
	}
}

// A thousand changes within a second make no more views than the debounce lets pass.
func TestManyChangesMakeFewViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", three)
		p := w.up(Config{}, three...)
		time.Sleep(5 * time.Second)
		before := p.view.Load().generation
		for i := range 1000 {
			u := update(three...)
			u.Instances[i%3].Weight = 1 + i
			w.registry.updates <- u
			time.Sleep(time.Millisecond)
		}
		if n := p.view.Load().generation - before; n > 60 {
			t.Errorf("1,000 changes within a second made %d views", n)
		}
		time.Sleep(100 * time.Millisecond)
		if got := p.Status().Members[999%3].Weight; got != 1000 {
			t.Errorf("the last change is not in use: weight %d", got)
		}
	})
}
