//go:build e2e

package backends_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap/zaptest"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/loadtest/lab"
	"github.com/kvip/kvip/protocol/forward"
)

// listed is a registry that lists a cluster's nodes once.
type listed []*lab.Node

func (listed) Name() string { return "lab" }

func (l listed) Run(ctx context.Context, publish func(discovery.Update)) error {
	u := discovery.Update{Explicit: true, At: time.Now()}
	for _, n := range l {
		host, port, err := net.SplitHostPort(n.Addr())
		if err != nil {
			return err
		}
		p, _ := strconv.Atoi(port)
		u.Instances = append(u.Instances, discovery.Instance{ID: n.Addr(), Host: host, Port: p, NodeID: -1, Weight: 1, Source: "lab"})
	}
	publish(u)
	<-ctx.Done()
	return ctx.Err()
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// TestOnRealKafka holds the pool to real brokers: what it tells is what they say, a frozen one (field case BL-14) and a
// killed one cost no forward, and what the cluster decides is followed.
func TestOnRealKafka(t *testing.T) {
	for name, start := range map[string]func(context.Context, lab.KafkaConfig) (*lab.Kafka, error){
		"KRaft": lab.StartKafka, "ZooKeeper": lab.StartKafkaZK,
	} {
		t.Run(name, func(t *testing.T) { onRealKafka(t, name == "KRaft", start) })
	}
}

func onRealKafka(t *testing.T, kraft bool, start func(context.Context, lab.KafkaConfig) (*lab.Kafka, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	k, err := start(ctx, lab.KafkaConfig{Racks: []string{"a", "a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	if err := k.CreateTopic(ctx, "orders", 6, 3); err != nil {
		t.Fatal(err)
	}
	cfg := backends.Config{Name: "orders", StateDir: t.TempDir()}
	pool, err := backends.New(cfg, []discovery.Provider{listed(k.Nodes())}, zaptest.NewLogger(t), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(run) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	t.Logf("ready after %v", eventually(t, 5*time.Second, "ready", func() bool { ok, _ := pool.Ready(); return ok }))
	view := func() *snapshot.Snapshot { return pool.Answers(snapshot.Now()).Snapshot() }
	v := view()
	if len(v.Brokers) != 3 || v.KRaft != kraft || v.HasTopicIDs != kraft || (v.Described != nil) != kraft {
		t.Errorf("the view: %d brokers, KRaft %v, topic ids %v, described %v", len(v.Brokers), v.KRaft, v.HasTopicIDs, v.Described)
	}
	for i, b := range v.Brokers {
		if want := k.Node(i); fmt.Sprintf("%s:%d", b.Host, b.Port) != want.Addr() || b.Rack == nil || *b.Rack != []string{"a", "a", "b"}[i] {
			t.Errorf("broker %+v, want %s", b, want.Addr())
		}
	}
	if err := k.CreateTopic(ctx, "late", 3, 3); err != nil {
		t.Fatal(err)
	}
	t.Logf("a new topic is known after %v", eventually(t, 2*time.Second, "the new topic", func() bool { return view().Topic("late") != nil }))

	frozen := k.Node(1)
	state := func() string {
		for _, m := range pool.Status().Members {
			if m.Broker == frozen.Addr() {
				return m.State
			}
		}
		return ""
	}
	load := newForwards(pool)
	defer load.end()
	if err := frozen.Pause(); err != nil {
		t.Fatal(err)
	}
	// Interval + timeout x fall, and the scheduling of a busy machine.
	t.Logf("frozen: out after %v", eventually(t, 2800*time.Millisecond, "the frozen broker is out", func() bool { return state() == "down" }))
	time.Sleep(2 * time.Second)
	if len(view().Brokers) != 3 && kraft { // ZooKeeper's session ends after 6 s
		t.Error("a broker that is frozen was taken out of the answers before the cluster did")
	}
	if err := frozen.Resume(); err != nil {
		t.Fatal(err)
	}
	t.Logf("resumed: back after %v", eventually(t, 15*time.Second, "it is back", func() bool { return state() == "serving" }))
	eventually(t, 15*time.Second, "all are listed", func() bool { return len(view().Brokers) == 3 })

	if err := frozen.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed: out after %v", eventually(t, 2800*time.Millisecond, "the killed broker is out", func() bool { return state() == "down" }))
	t.Logf("killed: unlisted after %v", eventually(t, 20*time.Second, "the cluster has given it up", func() bool { return len(view().Brokers) == 2 }))
	eventually(t, 5*time.Second, "all partitions have a leader that lives", func() bool {
		for p := range view().Topic("orders").All {
			if p.Leader == 2 {
				return false
			}
		}
		return true
	})
	if age := pool.Status().Snapshot.AgeSeconds; age > 1 {
		t.Errorf("the view is %v s old", age)
	}
	if err := frozen.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "it serves again", func() bool { return state() == "serving" && len(view().Brokers) == 3 })
	sent, failed, worst := load.end()
	t.Logf("%d forwards, slowest %v; rejected %v", sent, worst, pool.Status().Rejected)
	if len(failed) > 0 || sent < 100 {
		t.Errorf("%d of %d forwards failed: %v", len(failed), sent, failed[:min(3, len(failed))])
	}
}

// forwards sends a FindCoordinator every few milliseconds, each as a new client would.
type forwards struct {
	pool   *backends.Pool
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	sent   int
	failed []error
	worst  time.Duration
}

func newForwards(pool *backends.Pool) *forwards {
	ctx, cancel := context.WithCancel(context.Background())
	f := &forwards{pool: pool, cancel: cancel}
	f.wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := int32(0); ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				f.wg.Add(1)
				f.one(n)
			}
		}
	})
	return f
}

func (f *forwards) one(n int32) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorKey = 1, "group"
	began := time.Now()
	f.pool.Forward(&forward.Request{
		Key: 10, Version: 1, Retry: true, Timeout: time.Second, Ctx: context.Background(),
		Frame: kmsg.NewRequestFormatter().AppendRequest(nil, req, n),
		Done: func(r forward.Result) {
			defer f.wg.Done()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.sent++
			f.worst = max(f.worst, time.Since(began))
			if r.Err != nil {
				f.failed = append(f.failed, r.Err)
			}
		},
	})
}

func (f *forwards) end() (sent int, failed []error, worst time.Duration) {
	f.cancel()
	f.wg.Wait()
	return f.sent, f.failed, f.worst
}
