//go:build e2e

package probe_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
	"github.com/kvip/kvip/loadtest/lab"
)

func run(t *testing.T, cfg probe.Config) probe.Result {
	t.Helper()
	p, err := probe.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return p.Run(ctx)
}

func closed(t *testing.T, k *lab.Kafka) {
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
}

// logged is how much a node has written to its log.
func logged(t *testing.T, n *lab.Node) string {
	t.Helper()
	b, err := os.ReadFile(n.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRealKafka(t *testing.T) {
	k, err := lab.StartKafka(t.Context(), lab.KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	closed(t, k)
	id := k.ClusterID()
	pool := func() string { return id }

	for _, n := range k.Nodes() {
		r := run(t, probe.Config{Addr: n.Addr(), NodeID: n.ID, ClusterID: pool})
		if !r.Verdict.Passed() || r.NodeID != n.ID || r.ClusterID != id || len(r.Brokers) != 3 {
			t.Fatalf("%s: %+v", n.Name(), r)
		}
		if _, high, _ := r.APIs.Range(3); high != 13 || len(r.APIs.SupportedFeatures) == 0 || r.APIs.FinalizedFeaturesEpoch < 0 {
			t.Errorf("%s: Metadata up to v%d, %d features, epoch %d", n.Name(), high, len(r.APIs.SupportedFeatures), r.APIs.FinalizedFeaturesEpoch)
		}
	}
	other := func() string { return "another" }
	if r := run(t, probe.Config{Addr: k.Node(0).Addr(), NodeID: probe.AnyNode, ClusterID: other}); r.Verdict.Reason != probe.ReasonWrongCluster {
		t.Errorf("another cluster: %+v", r.Verdict)
	}
	if r := run(t, probe.Config{Addr: k.Node(0).Addr(), NodeID: k.Node(1).ID}); r.Verdict.Reason != probe.ReasonWrongNode {
		t.Errorf("another node: %+v", r.Verdict)
	}
	if r := run(t, probe.Config{Addr: controller(t, k.Node(0)), NodeID: probe.AnyNode}); r.Verdict.Reason != probe.ReasonController {
		t.Errorf("a controller's listener: %+v", r.Verdict)
	}
	t.Run("frozen, killed, restarted", func(t *testing.T) { faults(t, k.Node(2), pool) })
	t.Run("quiet in the brokers' logs", func(t *testing.T) { quiet(t, k.Node(0), pool) }) // BL-06
	t.Run("fenced", func(t *testing.T) { fenced(t, k, pool) })
}

// fenced kills a broker and asks another one as if it were that one: it is what a broker says that knows itself fenced.
func fenced(t *testing.T, k *lab.Kafka, pool func() string) {
	gone := k.Node(1)
	if err := gone.Kill(); err != nil {
		t.Fatal(err)
	}
	cfg := probe.Config{Addr: gone.Addr(), NodeID: gone.ID, ClusterID: pool}
	cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, k.Node(0).Addr())
	}
	var r probe.Result
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if r = run(t, cfg); !r.Verdict.Passed() {
			break
		}
	}
	if r.Verdict.Reason != probe.ReasonFenced {
		t.Errorf("got %+v", r.Verdict)
	}
}

// controller finds the address of a node's controller listener in its configuration.
func controller(t *testing.T, n *lab.Node) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(n.LogPath()), "*.properties"))
	if err != nil {
		t.Fatal(err)
	}
	listener := regexp.MustCompile(`CONTROLLER://([^,\s]+:\d+)`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if m := listener.FindSubmatch(b); m != nil {
			return string(m[1])
		}
	}
	t.Fatalf("no CONTROLLER listener in %v", files)
	return ""
}

// faults has a broker freeze (BL-14), thaw, die and come back (BL-09) under a scheduler with the default figures.
func faults(t *testing.T, n *lab.Node, pool func() string) {
	changes := make(chan healthcheck.Event, 16)
	s := healthcheck.New(healthcheck.Config{}, func(e healthcheck.Event) {
		if e.Changed() {
			changes <- e
		}
	})
	p, err := probe.New(probe.Config{Addr: n.Addr(), NodeID: n.ID, ClusterID: pool})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add("n", p); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done }()

	become := func(want healthcheck.State, within time.Duration, what string) healthcheck.Verdict {
		t.Helper()
		begun := time.Now()
		select {
		case e := <-changes:
			if e.State != want {
				t.Fatalf("%s: %v (%+v), want %v", what, e.State, e.Verdict, want)
			}
			t.Logf("%s: %v after %v, %s %s", what, want, time.Since(begun).Round(time.Millisecond), e.Verdict.Reason, e.Verdict.Detail)
			return e.Verdict
		case <-time.After(within):
			t.Fatalf("%s: not %v within %v", what, want, within)
		}
		panic("unreachable")
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const out = time.Second + 3*500*time.Millisecond // interval + timeout x fall
	become(healthcheck.Up, time.Second, "started")
	do(n.Pause())
	if v := become(healthcheck.Down, out, "frozen"); v.Reason != probe.ReasonTimeout {
		t.Errorf("down for %+v", v)
	}
	do(n.Resume())
	become(healthcheck.Up, 20*time.Second, "thawed")
	do(n.Kill())
	if v := become(healthcheck.Down, out, "killed"); v.Reason != probe.ReasonRefused && v.Reason != probe.ReasonClosed {
		t.Errorf("down for %+v", v)
	}
	do(n.Restart(t.Context()))
	become(healthcheck.Up, 20*time.Second, "restarted")
}

// quiet probes a broker every 20 ms for 10 s, on a kept connection and on new ones.
func quiet(t *testing.T, n *lab.Node, pool func() string) {
	before := logged(t, n)
	cfg := probe.Config{Addr: n.Addr(), NodeID: n.ID, ClusterID: pool}
	kept, err := probe.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	probes := 0
	for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		a, b := kept.Run(ctx), run(t, cfg)
		cancel()
		if !a.Verdict.Passed() || !b.Verdict.Passed() {
			t.Fatalf("%+v, %+v", a.Verdict, b.Verdict)
		}
		probes += 2
	}
	if after := logged(t, n); after != before {
		t.Errorf("%d probes made the broker log:\n%s", probes, after[len(before):])
	}
}

func TestRealKafkaOnZooKeeper(t *testing.T) {
	k, err := lab.StartKafkaZK(t.Context(), lab.KafkaConfig{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	closed(t, k)
	n := k.Node(0)
	r := run(t, probe.Config{Addr: n.Addr(), NodeID: n.ID})
	if !r.Verdict.Passed() || r.ControllerID != n.ID || r.ClusterID == "" {
		t.Fatalf("%+v", r)
	}
	if _, high, _ := r.APIs.Range(3); high != 5 || len(r.APIs.Keys) != 43 {
		t.Errorf("%d keys, Metadata up to v%d; want 43 and 5", len(r.APIs.Keys), high)
	}
	for _, s := range r.Steps {
		t.Logf("%-12s %8v %s", s.Name, s.Took.Round(time.Microsecond), s.Detail)
	}
	quiet(t, n, func() string { return r.ClusterID })
}
