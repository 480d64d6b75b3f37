package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kvip/kvip/healthcheck"
)

func TestProbesKeepOneConnectionAndEndItWithAFIN(t *testing.T) {
	s := newStub(t)
	p := s.prober(t, nil)
	for i := range 5 {
		r := probe(t, p)
		if !r.Verdict.Passed() || r.Reconnected != (i == 0) || !r.Listed || r.RTT <= 0 || r.NodeID != 1 || r.ControllerID != 1 || r.ClusterID != "A" || len(r.Brokers) != 2 {
			t.Fatalf("probe %d: %+v", i, r)
		}
	}
	want := slices.Repeat([]request{{18, 4}, {3, 13}}, 5)
	if diff := cmp.Diff(want, s.requests(), cmp.AllowUnexported(request{})); diff != "" || s.accepted != 1 {
		t.Errorf("%d connections, requests differ (-want +got):\n%s", s.accepted, diff)
	}
	p.Close()
	for ended := false; !ended; time.Sleep(time.Millisecond) {
		s.set(func(s *stub) { ended = len(s.ends) > 0 })
	}
	if len(s.ends) != 1 || !errors.Is(s.ends[0], io.EOF) {
		t.Errorf("connections ended with %v, want one FIN", s.ends)
	}
}

func TestApiVersionsFallsBackToWhatTheBrokerKnows(t *testing.T) {
	tests := []struct {
		kafka  string
		high   int16
		silent bool
		asked  []int16
	}{
		{"4.4", 5, false, []int16{4}},
		{"4.3", 4, false, []int16{4}},
		{"3.8", 3, false, []int16{4, 3}},
		{"2.4 to 2.3", 2, false, []int16{4, 2}},
		{"1.1, which does not say", 1, true, []int16{4, 0}},
		{"0.10", 0, true, []int16{4, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.kafka, func(t *testing.T) {
			s := newStub(t)
			s.set(func(s *stub) { s.apis[18], s.silent35 = tt.high, tt.silent })
			p := s.prober(t, func(c *Config) { c.Checks = []string{"api_versions"} })
			r := probe(t, p)
			again := probe(t, p)
			if !r.Verdict.Passed() || r.APIs != again.APIs {
				t.Fatalf("verdicts %+v and %+v, tables %p and %p", r.Verdict, again.Verdict, r.APIs, again.APIs)
			}
			var asked []int16
			for _, q := range s.requests() {
				asked = append(asked, q.version)
			}
			// The second probe begins where the first ended.
			if want := append(slices.Clone(tt.asked), tt.asked[len(tt.asked)-1]); !slices.Equal(asked, want) {
				t.Errorf("asked versions %v, want %v", asked, want)
			}
			if _, high, ok := r.APIs.Range(3); !ok || high != 13 || !slices.IsSortedFunc(r.APIs.Keys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey) - int(b.ApiKey) }) {
				t.Errorf("table %+v", r.APIs.Keys)
			}
			if tt.high >= 3 && (len(r.APIs.SupportedFeatures) != 2 || r.APIs.SupportedFeatures[0].Name != "a" || r.APIs.FinalizedFeaturesEpoch != 7) {
				t.Errorf("features %+v, epoch %d", r.APIs.SupportedFeatures, r.APIs.FinalizedFeaturesEpoch)
			}
		})
	}
}

func TestATableThatChangesIsANewOne(t *testing.T) {
	s := newStub(t)
	p := s.prober(t, nil)
	s.set(func(s *stub) { s.apis = map[int16]int16{0: 1, 3: 8, 18: 2} })
	before := probe(t, p).APIs
	s.set(func(s *stub) { s.apis = kafka43() })
	s.cut() // an upgrade
	after := probe(t, p)
	if _, high, _ := after.APIs.Range(3); high != 13 || before == after.APIs {
		t.Errorf("after the upgrade Metadata goes to v%d", high)
	}
	if q := s.requests(); q[len(q)-2].version != firstVersion {
		t.Errorf("the new connection begins with ApiVersions v%d, want v%d", q[len(q)-2].version, firstVersion)
	}
}

func TestAKeptConnectionThatWasClosedIsNoFailure(t *testing.T) {
	s := newStub(t)
	p := s.prober(t, nil)
	for range 3 {
		if r := probe(t, p); !r.Verdict.Passed() || !r.Reconnected {
			t.Fatalf("%+v, reconnected %v", r.Verdict, r.Reconnected)
		}
		s.cut()
	}
	// One that closes each new connection too has failed.
	s.set(func(s *stub) { s.raw[18] = []byte{} })
	if r := probe(t, p); r.Verdict.Reason != ReasonClosed {
		t.Errorf("got %+v, want closed", r.Verdict)
	}
	_ = s.ln.Close()
	if r := probe(t, p); r.Verdict.Reason != ReasonRefused {
		t.Errorf("got %+v, want refused", r.Verdict)
	}
}

func TestALateAnswerIsThrownAwayWithItsConnection(t *testing.T) {
	s := newStub(t)
	p := s.prober(t, nil)
	probe(t, p)
	s.set(func(s *stub) { s.raw[3] = nil }) // frozen
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if r := p.Run(ctx); r.Verdict.Reason != ReasonTimeout {
		t.Fatalf("got %+v, want timeout", r.Verdict)
	}
	s.set(func(s *stub) { delete(s.raw, 3) })
	if r := probe(t, p); !r.Verdict.Passed() || !r.Reconnected {
		t.Errorf("thawed: %+v, reconnected %v", r.Verdict, r.Reconnected)
	}
}

func TestSelfListed(t *testing.T) {
	lookups := func(ctx context.Context, host string) ([]netip.Addr, error) {
		switch host {
		case "kafka-1.example.com":
			return []netip.Addr{netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("::ffff:127.0.0.1")}, nil
		case "kafka-2.example.com":
			return []netip.Addr{netip.MustParseAddr("127.0.0.2")}, nil
		}
		return nil, errors.New("no such host")
	}
	tests := []struct {
		name      string
		hosts     []string // of nodes 1, 2, ...; "host:+1" is another port
		dial      string   // the registered host, reached at the stub all the same
		node      int32
		want      int32
		reason    healthcheck.Reason
		inDetail  string
		noLookups bool
	}{
		{name: "as registered", hosts: []string{"other", "127.0.0.1"}, node: AnyNode, want: 2, noLookups: true},
		{name: "as registered, in another spelling", hosts: []string{"Kafka-1.EXAMPLE.com"}, dial: "kafka-1.example.com", node: AnyNode, want: 1, noLookups: true},
		{name: "registered by name, advertised by address", hosts: []string{"127.0.0.1"}, dial: "anything", node: AnyNode, want: 1, noLookups: true},
		{name: "registered by address, advertised by name", hosts: []string{"nowhere", "kafka-2.example.com", "kafka-1.example.com"}, node: AnyNode, want: 3},
		{name: "by the registry's node id", hosts: []string{"a", "b"}, node: 2, want: 2, noLookups: true},
		{name: "the address says another than the registry", hosts: []string{"127.0.0.1", "b"}, node: 2, want: 1, reason: ReasonWrongNode, inDetail: "its node id is 1, the registry says 2", noLookups: true},
		{name: "neither address nor node id", hosts: []string{"a", "b"}, node: 7, want: AnyNode, reason: ReasonNotListed, inDetail: "node 7", noLookups: true},
		{name: "the port counts", hosts: []string{"127.0.0.1:+1", "kafka-1.example.com:+1"}, node: AnyNode, want: AnyNode, reason: ReasonNotListed, inDetail: "register the advertised host:port", noLookups: true},
		{name: "names that do not resolve are said", hosts: []string{"nowhere"}, node: AnyNode, want: AnyNode, reason: ReasonNotListed, inDetail: "no such host"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStub(t)
			s.set(func(s *stub) {
				s.brokers = nil
				for i, h := range tt.hosts {
					b := kmsg.MetadataResponseBroker{NodeID: int32(i + 1), Host: h, Port: s.port()}
					if name, ok := strings.CutSuffix(h, ":+1"); ok {
						b.Host, b.Port = name, s.port()+1
					}
					s.brokers = append(s.brokers, b)
				}
			})
			asked := 0
			p := s.prober(t, func(c *Config) {
				c.NodeID = tt.node
				c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) { asked++; return lookups(ctx, host) }
				if tt.dial != "" {
					_, port, _ := net.SplitHostPort(c.Addr)
					c.Addr = net.JoinHostPort(tt.dial, port)
					c.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
						return new(net.Dialer).DialContext(ctx, network, s.addr())
					}
				}
			})
			r := probe(t, p)
			if r.Verdict.Reason != tt.reason || r.NodeID != tt.want || !strings.Contains(r.Verdict.Detail, tt.inDetail) {
				t.Errorf("got %q (%s), node %d; want %q, node %d", r.Verdict.Reason, r.Verdict.Detail, r.NodeID, tt.reason, tt.want)
			}
			if tt.noLookups != (asked == 0) {
				t.Errorf("%d look-ups", asked)
			}
			before := asked
			if probe(t, p); tt.reason == healthcheck.OK && asked > before+1 {
				t.Errorf("%d look-ups in the second probe, want the known name first", asked-before)
			}
		})
	}
}

func TestTheBrokerListIsAskedForEveryNthTimeWhileAllIsWell(t *testing.T) {
	s := newStub(t)
	pool := "A"
	p := s.prober(t, func(c *Config) {
		c.MetadataEvery = func() int { return 6 }
		c.ClusterID = func() string { return pool }
	})
	lists := func(probes int) (n int) {
		for range probes {
			r := probe(t, p)
			if r.NodeID != 1 && r.Verdict.Passed() || len(r.Brokers) != 2 {
				t.Fatalf("result %+v", r)
			}
			if r.Listed {
				n++
			}
		}
		return n
	}
	if n := lists(18); n != 3 {
		t.Errorf("asked %d times in 18 probes, want 3", n)
	}
	s.cut()
	if n := lists(1); n != 1 {
		t.Error("not asked on a new connection")
	}
	pool = "B" // what is known of the broker is judged in each probe
	if r := probe(t, p); r.Verdict.Reason != ReasonWrongCluster || r.Listed {
		t.Errorf("got %+v, listed %v", r.Verdict, r.Listed)
	}
	if n := lists(3); n != 3 {
		t.Errorf("asked %d times in 3 probes of a broker that does not pass, want 3", n)
	}
}

func TestAStartingBrokerIsNotReadyAndComesBackByItself(t *testing.T) { // BL-09
	s := newStub(t)
	p := s.prober(t, func(c *Config) { c.ClusterID = func() string { return "A" } })
	brokers := s.brokers
	for restart := range 5 {
		if r := probe(t, p); !r.Verdict.Passed() {
			t.Fatalf("before restart %d: %+v", restart, r.Verdict)
		}
		s.cut()
		s.set(func(s *stub) { s.brokers, s.controller = nil, -1 })
		if r := probe(t, p); r.Verdict.Reason != ReasonNoBrokers || r.NodeID != AnyNode || len(r.Brokers) != 0 {
			t.Fatalf("while it starts: %+v", r)
		}
		s.set(func(s *stub) { s.brokers, s.controller = brokers, 1 })
	}
}

func TestReportGetsWhatCheckDecides(t *testing.T) {
	s := newStub(t)
	var got []Result
	p := s.prober(t, func(c *Config) { c.Report = func(r Result) { got = append(got, r) } })
	v := p.Check(t.Context())
	if len(got) != 1 || got[0].Verdict != v || v.Took <= 0 || v.At.IsZero() || got[0].Addr != s.addr() {
		t.Errorf("reported %+v, verdict %+v", got, v)
	}
	var names []string
	for _, step := range probe(t, p).Steps {
		names = append(names, step.Name)
	}
	if !slices.Equal(names, Names()) {
		t.Errorf("steps %v, want %v", names, Names())
	}
}

func TestChosenChecksBringThoseThatTheyLookAt(t *testing.T) {
	for want, checks := range map[string][]string{
		"connect":                       {"connect"},
		"connect api_versions listener": {"listener"},
		"connect api_versions metadata cluster_id":          {"cluster_id"},
		"connect api_versions metadata self_listed node_id": {"node_id"},
	} {
		p, err := New(Config{Addr: "h:1", Checks: checks})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range p.checks {
			got = append(got, c.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v runs %v, want %s", checks, got, want)
		}
	}
}

func TestNewRefusesWhatCannotBeProbed(t *testing.T) {
	for _, addr := range []string{"", "kafka", "kafka:", "kafka:0", "kafka:65536", ":9092", "kafka:http"} {
		if _, err := New(Config{Addr: addr}); err == nil {
			t.Errorf("%q is accepted", addr)
		}
	}
	if _, err := New(Config{Addr: "h:1", Checks: []string{"lag"}}); err == nil || !strings.Contains(err.Error(), "api_versions") {
		t.Errorf("an unknown check: %v, want the known ones named", err)
	}
}

// cluster starts a kfake cluster and returns its addresses.
func cluster(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, []string) {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, c.ListenAddrs()
}

func prober(t *testing.T, cfg Config) *Prober {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestEveryBrokerOfAClusterPasses(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"newest": kversion.Stable(), "Kafka 1.1": kversion.V1_1_0()} {
		t.Run(name, func(t *testing.T) {
			_, addrs := cluster(t, kfake.ClusterID("A"), kfake.MaxVersions(versions))
			ids := map[int32]bool{}
			for _, addr := range addrs {
				p := prober(t, Config{Addr: addr, NodeID: AnyNode, ClusterID: func() string { return "A" }})
				for range 2 {
					r := probe(t, p)
					if !r.Verdict.Passed() || len(r.Brokers) != 3 {
						t.Fatalf("%s: %+v", addr, r)
					}
					ids[r.NodeID] = true
				}
			}
			if len(ids) != 3 {
				t.Errorf("node ids %v, want three", ids)
			}
		})
	}
}

func TestAnAddressThatMovedToAnotherClusterIsFoundOut(t *testing.T) { // BL-10
	_, addrs := cluster(t, kfake.ClusterID("B"))
	p := prober(t, Config{Addr: addrs[2], NodeID: 2, ClusterID: func() string { return "A" }})
	r := probe(t, p)
	if r.Verdict.Reason != ReasonWrongCluster || r.ClusterID != "B" || !strings.Contains(r.Verdict.Detail, `"B"`) || !strings.Contains(r.Verdict.Detail, `"A"`) {
		t.Errorf("got %+v", r)
	}
}

func TestTheSchedulerTakesAFrozenBrokerOutAndBack(t *testing.T) { // BL-14, in small
	s := newStub(t)
	cfg := healthcheck.Config{Interval: 40 * time.Millisecond, Timeout: 20 * time.Millisecond}
	var mu sync.Mutex
	changes := make(chan healthcheck.Event, 10)
	scheduler := healthcheck.New(cfg, func(e healthcheck.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Changed() {
			changes <- e
		}
	})
	if err := scheduler.Add("b", s.prober(t, nil)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- scheduler.Run(ctx) }()
	next := func(want healthcheck.State) healthcheck.Event {
		select {
		case e := <-changes:
			if e.State != want {
				t.Fatalf("changed to %v, want %v", e.State, want)
			}
			return e
		case <-time.After(5 * time.Second):
			t.Fatalf("never %v", want)
		}
		panic("unreachable")
	}
	next(healthcheck.Up)
	s.set(func(s *stub) { s.raw[18], s.raw[3] = nil, nil })
	if e := next(healthcheck.Down); e.Verdict.Reason != ReasonTimeout {
		t.Errorf("down for %+v", e.Verdict)
	}
	s.set(func(s *stub) { clear(s.raw) })
	next(healthcheck.Up)
	cancel()
	<-done
}
