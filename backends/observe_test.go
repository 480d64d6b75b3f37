package backends

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
)

// A pool in whose registry only some brokers are: with dial_allow the table is true of the others too, and nothing is
// forwarded to them; without it they hear nothing of kvip. Loopback and real time, as it is the real dialler that is held
// to dial_allow.
func TestBrokersOutsideTheRegistry(t *testing.T) {
	for _, c := range []struct {
		name  string
		allow []netip.Prefix
		asked bool
	}{
		{"allowed", []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, true},
		{"others are allowed", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, false},
		{"none is allowed", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster, err := kfake.NewCluster(kfake.ClusterID("A"), kfake.NumBrokers(2))
			if err != nil {
				t.Fatal(err)
			}
			defer cluster.Close()
			var asked, other atomic.Int32
			lie(cluster, 18, []int32{1}, func(req kmsg.Request) *kmsg.ApiVersionsResponse {
				asked.Add(1)
				return oldTable(req)
			})
			cluster.ControlKey(10, func(kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				if cluster.CurrentNode() == 1 {
					other.Add(1)
				}
				return nil, nil, false
			})
			registered := cluster.ListenAddrs()[0]
			host, port, _ := net.SplitHostPort(registered)
			n, _ := strconv.Atoi(port)
			reg := newRegistry()
			reg.updates <- discovery.Update{Instances: []discovery.Instance{{Host: host, Port: n, NodeID: -1, Weight: 1}}}
			p, err := newPool(Config{Name: "orders", DialAllow: c.allow}, []discovery.Provider{reg}, nil, nil, parts{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- p.Run(ctx) }()
			eventually(t, 5*time.Second, "ready", func() bool { ok, _ := p.Ready(); return ok })
			if _, hi, _ := p.view.Load().apis.Range(0); (hi == 7) != c.asked {
				t.Errorf("Produce up to %d in the first view, the other broker's 7 counts: %v", hi, c.asked)
			}
			w := &world{t: t, pool: p}
			for range 4 {
				if r := find(w, 0); r.Err != nil || r.Broker != registered {
					t.Errorf("a forward: %+v", r)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if (asked.Load() > 0) != c.asked || other.Load() > 0 {
				t.Errorf("the broker outside the registry was asked for its table %d times, got %d forwards", asked.Load(), other.Load())
			}
		})
	}
}

func TestALookAtTheAnswersAllocatesNothing(t *testing.T) {
	p, err := newPool(Config{Name: "orders"}, []discovery.Provider{newRegistry()}, nil, nil, parts{})
	if err != nil {
		t.Fatal(err)
	}
	p.writer.cur = started(t).cur
	p.writer.sorted = []*member{{addr: "b0", state: Serving, apis: modern}}
	p.writer.publish()
	p.confirmed.Store(int64(p.parts.now()))
	if p.Answers(p.parts.now()) == nil {
		t.Fatal("nothing is answered")
	}
	if n := testing.AllocsPerRun(1000, func() { p.Answers(p.parts.now()) }); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

func TestAConfigurationThatCannotWork(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, `pool name ""`},
		{Config{Name: "../x"}, `pool name "../x"`},
		{Config{Name: "p", Policy: "best"}, `pool p: unknown policy "best": take one of least-inflight`},
		{Config{Name: "p", MaxAge: time.Minute, MaxStale: time.Second}, "pool p: max_stale 1s is below max_age 1m0s: raise it"},
		{Config{Name: "p", MaxUpstream: -1}, "have to be above 0"},
		{Config{Name: "p", MaxAge: -1}, "a duration is negative"},
	} {
		_, err := New(c.cfg, []discovery.Provider{newRegistry()}, nil, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q in it", c.cfg, err, c.want)
		}
	}
	if _, err := New(Config{Name: "p"}, nil, nil, nil); !errors.Is(err, errNoProvider) {
		t.Errorf("without a provider: %v", err)
	}
}

// The reserve that the front takes out of its descriptors holds in a large pool too.
func TestDescriptorsAreBounded(t *testing.T) {
	p, err := newPool(Config{Name: "orders"}, []discovery.Provider{newRegistry()}, nil, nil, parts{})
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Descriptors(); n < 100 || n > 1000 {
		t.Errorf("%d with nothing known, want some hundreds", n)
	}
	p.view.Store(&view{members: make([]*member, 2000)})
	if n := p.Descriptors(); n > 5000 {
		t.Errorf("%d with 2,000 members, want one for each probe and a bounded rest", n)
	}
}

// deaf is a connection to a broker that hears nothing.
type deaf struct{ net.Conn }

func (deaf) Write(b []byte) (int, error) { return len(b), nil }

// A broker that has just started is listed some moments before it answers: it is handed out once it has told its versions,
// or after a while, so that one that kvip cannot reach does not keep clients from everything else that is new.
func TestANewBrokerIsHandedOutOnceItsVersionsAreKnown(t *testing.T) {
	for name, mute := range map[string]time.Duration{"answers after 3 s": 3 * time.Second, "never answers": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				c := w.cluster("A", three)
				lie(c, 18, []int32{3}, oldTable)
				p := w.up(Config{}, three...)
				w.registry.list(9092, 9093, 9094, 9095)
				time.Sleep(2 * time.Second) // it is down to begin with
				began := time.Now()
				w.mu.Lock()
				w.spoil = map[string]func(net.Conn) net.Conn{addr(9095): func(c net.Conn) net.Conn {
					if time.Since(began) < mute {
						return deaf{c}
					}
					return c
				}}
				w.mu.Unlock()
				before := len(w.built())
				if _, _, err := c.AddNode(3, 9095); err != nil {
					t.Fatal(err)
				}
				eventually(t, 12*time.Second, "the fourth broker is handed out", func() bool { return slices.Contains(w.brokers(), 3) })
				if took := time.Since(began); took < min(mute, unlearntFor) || took > unlearntFor+2*time.Second {
					t.Errorf("handed out after %v", took)
				}
				if n := p.Status().Rejected[string(snapshot.UnknownVersions)]; n == 0 {
					t.Error("the views that were held back are not counted")
				}
				for _, in := range w.built()[before:] {
					if _, hi, _ := in.APIs.Range(0); mute < unlearntFor && in.Snapshot.Broker(3) != nil && hi != 7 {
						t.Errorf("generation %d lists the old broker with Produce up to %d", in.Snapshot.Generation, hi)
					}
				}
			})
		})
	}
}

// A broker that an operator takes out of the pool counts for as long as the cluster lists it: clients are told of it.
func TestABrokerThatLeavesTheRegistryCountsWhileTheClusterListsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", []int{9092, 9093, 9094, 9095})
		lie(c, 18, []int32{3}, oldTable)
		w.up(Config{}, 9092, 9093, 9094, 9095)
		produce := func() int16 {
			_, hi, _ := w.pool.view.Load().apis.Range(0)
			return hi
		}
		if hi := produce(); hi != 7 {
			t.Fatalf("Produce up to %d with an old broker, want 7", hi)
		}
		w.registry.list(three...)
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			if hi := produce(); hi != 7 && slices.Contains(w.brokers(), 3) {
				t.Fatalf("Produce up to %d while the old broker is handed out", hi)
			}
		}
		if len(w.states()) != 3 {
			t.Fatalf("members: %v", w.states())
		}
		if err := c.RemoveNode(3); err != nil {
			t.Fatal(err)
		}
		eventually(t, 3*time.Second, "widened once the cluster does not list it", func() bool { return produce() > 7 })
	})
}

// withOneAway is a pool of three brokers of which node 1 has died, and been given up by the cluster.
func withOneAway(t *testing.T) (*world, *kfake.Cluster) {
	t.Helper()
	w := newWorld(t)
	c := w.cluster("A", three)
	w.up(Config{}, three...)
	if err := c.RemoveNode(1); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "it is down", func() bool {
		return strings.HasPrefix(w.states()[addr(9093)], "down") && !slices.Contains(w.brokers(), 1)
	})
	return w, c
}

// A broker that comes back as an older version, at the address that it had, is a broker with less: its last table is over.
func TestABrokerThatComesBackOlder(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) {
			w, c := withOneAway(t)
			time.Sleep(time.Duration(seed) * 50 * time.Millisecond)
			lie(c, 18, []int32{1}, oldTable)
			before := len(w.built())
			if _, _, err := c.AddNode(1, 9093); err != nil {
				t.Fatal(err)
			}
			eventually(t, 10*time.Second, "it is handed out", func() bool { return slices.Contains(w.brokers(), 1) })
			time.Sleep(3 * time.Second)
			for _, in := range w.built()[before:] {
				if _, hi, _ := in.APIs.Range(0); in.Snapshot.Broker(1) != nil && hi != 7 {
					t.Errorf("seed %d: generation %d lists the old broker with Produce up to %d", seed, in.Snapshot.Generation, hi)
				}
			}
		})
	}
}

// One that comes back and cannot be reached keeps clients from what else is new for a second or so: most likely it is what
// it was.
func TestABrokerThatComesBackSilentIsHandedOutSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := withOneAway(t)
		w.mu.Lock()
		w.spoil = map[string]func(net.Conn) net.Conn{addr(9093): func(c net.Conn) net.Conn { return deaf{c} }}
		w.mu.Unlock()
		if _, _, err := c.AddNode(1, 9093); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		eventually(t, 10*time.Second, "it is handed out", func() bool { return slices.Contains(w.brokers(), 1) })
		if took := time.Since(began); took > 2500*time.Millisecond {
			t.Errorf("handed out after %v", took)
		}
	})
}
