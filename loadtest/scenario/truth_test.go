package scenario

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

// every is one of each kind of request, of old versions and new ones.
var every = []Share{{"metadata-all", 1}, {"metadata-all@4", 1}, {"metadata-one", 1}, {"metadata-one@7", 1}, {"metadata-brokers", 1},
	{"describe-cluster@0", 1}, {"describe-cluster@2", 1}, {"find-coordinator@0", 1}, {"find-coordinator@1", 1}, {"find-coordinator@3", 1}, {"find-coordinator@6", 1}}

// hear begins to ask a peer for the truth, with times short enough for a test.
func hear(t *testing.T, peer string, bound time.Duration) *check.Truth {
	t.Helper()
	truth := check.NewTruth(check.TruthConfig{
		Brokers: []string{peer}, Groups: Groups, Every: 10 * time.Millisecond, Bound: bound,
		Now: func() time.Duration { return time.Duration(engine.Now()) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { truth.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	if err := truth.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return truth
}

func TestBootstrapsAskForWhatIsDrawnAndARightAnswerIsTrue(t *testing.T) {
	target := (&peer{}).listen(t)
	for _, scenario := range []string{"storm", "mixed"} {
		cfg := short(target, scenario)
		cfg.Mix = []Share{{"storm", 1}}
		cfg.Asks, cfg.Draw, cfg.Truth = every, len(every), hear(t, target, time.Second)
		cfg.DialBrokers = true
		r := run(t, cfg)
		if r.Answered == 0 || r.Answered != r.Started || r.TargetFailures()+r.LocalFailures() > 0 {
			t.Fatalf("%s: %d of %d answered, failures %v %v", scenario, r.Answered, r.Started, r.Failed, r.Details)
		}
		for stage, each := range map[record.Stage]uint64{record.APIVersions: 1, record.Metadata: 5, record.DescribeCluster: 2, record.FindCoordinator: 4, record.Age: 11} {
			// Clients draw from one deal, so that only their sum is even.
			if n := uint64(r.Stages[stage].TotalCount()); n+each*8 < each*r.Answered || n > each*(r.Answered+8) {
				t.Errorf("%s: %d answers in stage %s of %d bootstraps, want %d each", scenario, n, stage, r.Answered, each)
			}
		}
	}
}

// TestEveryPlantedLieIsFound has a peer pose as another one, which says otherwise.
func TestEveryPlantedLieIsFound(t *testing.T) {
	honest := &peer{}
	addr := honest.listen(t)
	_, digits, _ := net.SplitHostPort(addr)
	port, _ := strconv.Atoi(digits)
	for name, c := range map[string]struct {
		faults
		asks string
		want string
	}{
		"none":                   {faults{}, "metadata-all", ""},
		"another leader":         {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Topics[0].Partitions[2].Leader = 2 }}, "metadata-one", "orders partition 2: leader 2 epoch 7"},
		"another leader, of old": {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Topics[0].Partitions[2].Leader = 2 }}, "metadata-one@4", "orders partition 2: leader 2:"},
		"another epoch":          {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Topics[0].Partitions[0].LeaderEpoch = 8 }}, "metadata-all", "leader 1 epoch 8"},
		"another topic":          {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Topics[0].Topic = kmsg.StringPtr("other") }}, "metadata-all", "topics"},
		"a topic too few":        {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Topics = nil }}, "metadata-all", "topics: 0 of them"},
		"a broker too few":       {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Brokers = m.Brokers[1:] }}, "metadata-brokers", "brokers: 2@"},
		"a broker elsewhere":     {faults{poses: 1}, "describe-cluster", "brokers: 1@127.0.0.1:1 "},
		"another cluster":        {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.ClusterID = kmsg.StringPtr("b") }}, "metadata-brokers", "cluster id: b"},
		"another coordinator":    {faults{find: func(c *kmsg.FindCoordinatorResponseCoordinator) { c.NodeID = 3 }}, "find-coordinator", "coordinator of kvip-loadtest-"},
		"no coordinator":         {faults{find: func(c *kmsg.FindCoordinatorResponseCoordinator) { c.ErrorCode = 15 }}, "find-coordinator@0", "error 15"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			liar := &peer{faults: c.faults}
			if liar.poses == 0 {
				liar.poses = port
			}
			cfg := short(liar.listen(t), "storm")
			cfg.Asks, cfg.Draw, cfg.Truth = []Share{{c.asks, 1}}, 1, hear(t, addr, time.Second)
			r := run(t, cfg)
			if c.want == "" {
				if r.Answered == 0 || r.Answered != r.Started {
					t.Errorf("%d of %d answered, failures %v %v", r.Answered, r.Started, r.Failed, r.Details)
				}
				return
			}
			if r.Answered > 0 || r.Failed[failure.Untrue] != r.Started || r.Started == 0 || !strings.Contains(r.Details[failure.Untrue][0], c.want) {
				t.Errorf("%d of %d answered, want all untrue for %q; failures %v %v", r.Answered, r.Started, c.want, r.Failed, r.Details)
			}
		})
	}
}

// TestWhatWasTrueIsUntrueOnceItIsOlderThanTheBound: the brokers move on, the target does not.
func TestWhatWasTrueIsUntrueOnceItIsOlderThanTheBound(t *testing.T) {
	for _, c := range []struct {
		bound time.Duration
		lies  bool
	}{{50 * time.Millisecond, true}, {time.Minute, false}} {
		var moved atomic.Bool
		honest := &peer{faults: faults{answer: func(_ int, m *kmsg.MetadataResponse) {
			if moved.Load() {
				m.Topics[0].Partitions[0].LeaderEpoch++
			}
		}}}
		addr := honest.listen(t)
		_, digits, _ := net.SplitHostPort(addr)
		port, _ := strconv.Atoi(digits)
		cfg := short((&peer{faults: faults{poses: port}}).listen(t), "kept")
		cfg.Truth, cfg.Duration = hear(t, addr, c.bound), 400*time.Millisecond
		cfg.Observe = func(begin bool) {
			if begin {
				time.AfterFunc(100*time.Millisecond, func() { moved.Store(true) })
			}
		}
		r := run(t, cfg)
		if lies := r.Failed[failure.Untrue] > 0; r.Answered == 0 || lies != c.lies || r.Answered+r.Failed[failure.Untrue] != r.Started {
			t.Errorf("bound %s: %d of %d answered, failures %v %v", c.bound, r.Answered, r.Started, r.Failed, r.Details)
		}
	}
}

func TestBadAsksAreNamed(t *testing.T) {
	cfg := Defaults()
	cfg.Target, cfg.Draw = "127.0.0.1:1", 0
	cfg.Asks = []Share{{"metadata-some", 1}, {"metadata-one", 1}, {"metadata-brokers@0", 1}, {"find-coordinator@7", 1}, {"metadata-all@x", 1}}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{`unknown "metadata-some": one of describe-cluster, find-coordinator`, "metadata-one needs a topic",
		"metadata-brokers in version 0: 1 to 13", "find-coordinator in version 7: 0 to 6", "a version is a number", "0 requests are drawn"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
}
