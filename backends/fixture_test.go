package backends

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// registry is a provider that says what a test wants.
type registry struct {
	updates chan discovery.Update
}

func newRegistry() *registry { return &registry{updates: make(chan discovery.Update, 16)} }

func (r *registry) Name() string { return "test" }

func (r *registry) Run(ctx context.Context, publish func(discovery.Update)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case u := <-r.updates:
			u.At = time.Now()
			publish(u)
		}
	}
}

// list registers brokers by port; a negative port is registered to drain.
func (r *registry) list(ports ...int) {
	r.updates <- update(ports...)
}

func instance(port int, serves bool) discovery.Instance {
	i := discovery.Instance{ID: fmt.Sprintf("b%d", port), Host: "localhost", Port: port, NodeID: -1, Source: "test"}
	if serves {
		i.Weight = 1
	}
	return i
}

func addr(port int) string { return fmt.Sprintf("localhost:%d", port) }

// world is a pool over fake clusters in one in-memory network, in fake time.
type world struct {
	t        *testing.T
	net      kfake.VirtualNetwork
	registry *registry
	logs     *observer.ObservedLogs
	metrics  *prometheus.Registry
	pool     *Pool
	stop     func()

	mu     sync.Mutex
	builds []answer.Input
	conns  map[string][]net.Conn
	delays map[string]time.Duration
	// spoil stands between the pool and a broker, by address.
	spoil map[string]func(net.Conn) net.Conn
}

func newWorld(t *testing.T) *world {
	return &world{t: t, registry: newRegistry(), conns: map[string][]net.Conn{}, delays: map[string]time.Duration{}}
}

// cluster starts a fake cluster of one broker a port, with node ids from 0.
func (w *world) cluster(id string, ports []int, more ...kfake.Opt) *kfake.Cluster {
	w.t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.ClusterID(id), kfake.NumBrokers(len(ports)), kfake.Ports(ports...), kfake.ListenFn(w.net.Listen),
		kfake.SeedTopics(3, "orders"), kfake.SeedTopics(1, "audit"),
	}, more...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

// start runs a pool with that configuration.
func (w *world) start(cfg Config) *Pool {
	w.t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	w.logs, w.metrics = logs, prometheus.NewRegistry()
	cfg.Name = "orders"
	p, err := newPool(cfg, []discovery.Provider{w.registry}, zap.New(core), w.metrics, parts{
		now:  func() snapshot.Time { return snapshot.Time(time.Now().UnixNano()) },
		dial: w.dial,
		build: func(in answer.Input, prev *answer.Set) *answer.Set {
			w.mu.Lock()
			w.builds = append(w.builds, in)
			w.mu.Unlock()
			return answer.Build(in, prev)
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	w.pool = p
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(func() {
		w.stop()
		if !w.t.Failed() {
			return
		}
		for _, e := range logs.All() {
			w.t.Logf("%s %s %s %v", e.Time.Format("05.000"), e.Level, e.Message, e.ContextMap())
		}
		w.t.Logf("%+v", p.Status())
	})
	return p
}

func (w *world) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	w.conns[addr] = append(w.conns[addr], nil) // it was tried
	w.mu.Unlock()
	c, err := w.net.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.conns[addr] = append(w.conns[addr], c)
	if spoil := w.spoil[addr]; spoil != nil {
		c = spoil(c)
	}
	w.mu.Unlock()
	return &delayed{Conn: c, w: w, addr: addr}, nil
}

// delayed is a connection to a broker that may be slow.
type delayed struct {
	net.Conn
	w        *world
	addr     string
	deadline atomic.Int64 // in Unix nanoseconds, 0 for none
}

func (d *delayed) SetDeadline(t time.Time) error {
	d.deadline.Store(0)
	if !t.IsZero() {
		d.deadline.Store(t.UnixNano())
	}
	return d.Conn.SetDeadline(t)
}

func (d *delayed) Write(b []byte) (int, error) {
	d.w.mu.Lock()
	delay := d.w.delays[d.addr]
	d.w.mu.Unlock()
	if end := d.deadline.Load(); end != 0 {
		delay = min(delay, time.Until(time.Unix(0, end)))
	}
	time.Sleep(delay)
	return d.Conn.Write(b)
}

// slow lets each request to a broker take so long from now on.
func (w *world) slow(port int, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delays[addr(port)] = delay
}

// cut ends all connections to a broker, as its death would.
func (w *world) cut(port int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns[addr(port)] {
		if c != nil {
			_ = c.Close()
		}
	}
}

// built returns what answers were built from so far.
func (w *world) built() []answer.Input {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.builds)
}

// now returns the answers that the pool would give.
func (w *world) now() *answer.Set { return w.pool.Answers(w.pool.parts.now()) }

// states are the members' states and reasons by port.
func (w *world) states() map[string]string {
	out := map[string]string{}
	for _, m := range w.pool.Status().Members {
		out[m.Broker] = m.State
		if m.Reason != "" {
			out[m.Broker] += " " + m.Reason
		}
	}
	return out
}

// brokers are the node ids that lookups are answered with.
func (w *world) brokers() []int32 {
	set := w.now()
	if set == nil {
		return nil
	}
	var ids []int32
	for _, b := range set.Snapshot().Brokers {
		ids = append(ids, b.NodeID)
	}
	return ids
}

// lie makes node answer requests of a key as change makes of the truth; nil for change's result keeps the truth. The
// returned function ends it.
func lie[R kmsg.Response](c *kfake.Cluster, key int16, nodes []int32, answer func(req kmsg.Request) R) (end func()) {
	var mu sync.Mutex
	on := true
	c.ControlKey(key, func(req kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		if !on {
			return nil, nil, false
		}
		c.KeepControl()
		if !slices.Contains(nodes, c.CurrentNode()) {
			return nil, nil, false
		}
		return answer(req), nil, true
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		on = false
	}
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func update(ports ...int) discovery.Update {
	u := discovery.Update{Explicit: true}
	for _, port := range ports {
		u.Instances = append(u.Instances, instance(max(port, -port), port > 0))
	}
	return u
}

// find forwards a FindCoordinator, by a connection that sticks to the broker at port unless that is 0.
func find(w *world, port int) forward.Result {
	w.t.Helper()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorKey = 1, "group"
	done := make(chan forward.Result, 1)
	r := &forward.Request{
		Key: 10, Version: 1, Frame: formatter.AppendRequest(nil, req, 77), Retry: true, Ctx: context.Background(),
		Done: func(r forward.Result) { done <- r },
	}
	if port != 0 {
		r.Broker = addr(port)
	}
	w.pool.Forward(r)
	return <-done
}

// findAs forwards a FindCoordinator for a new connection of that client.
func findAs(w *world, client uint64) forward.Result {
	w.t.Helper()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorKey = 1, "group"
	done := make(chan forward.Result, 1)
	w.pool.Forward(&forward.Request{
		Key: 10, Version: 1, Frame: formatter.AppendRequest(nil, req, 77), Retry: true, Ctx: context.Background(), Client: client,
		Done: func(r forward.Result) { done <- r },
	})
	return <-done
}

// gathered returns a metric's value by "name{label=value,...}".
func gathered(w *world, name string) (float64, error) {
	families, err := w.metrics.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			if f.GetName()+"{"+strings.Join(labels, ",")+"}" == name {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue(), nil
			}
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}
