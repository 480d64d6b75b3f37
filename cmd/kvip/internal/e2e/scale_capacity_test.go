//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
	"github.com/kvip/kvip/loadtest/scenario"
	"github.com/kvip/kvip/loadtest/schedule"
	"github.com/kvip/kvip/loadtest/stub"
)

// unequal is a kvip over brokers that serve 20, 20 and 10 lookups a second times scale, and its load.
type unequal struct {
	policy string
	known  bool // the weights are 2:2:1, else 1:1:1
	open   bool // 50 a second whatever comes of them, else clients that always have one waiting
	// least and most are the share of the sum that has to be carried.
	least, most float64

	cluster *stub.Cluster
	cfg     scenario.Config
	result  *record.Result
	served  []uint64
	err     error
}

func (u *unequal) String() string {
	loop := "closed loop"
	if u.open {
		loop = "open loop"
	}
	return fmt.Sprintf("%s, weights known: %v, %s", u.policy, u.known, loop)
}

// Brokers that serve 20, 20 and 10 lookups a second, what comes faster waiting its turn, under `lookup: forward`; lookups
// that may create their topic, which are never sent twice. Clients that always have one waiting: plain turns carry three
// times what the slowest broker does. 50 lookups a second, whatever comes of them: plain turns give the slowest more than it
// can serve, and all that wait there give up.
func TestUnequalBackendsCarryTheirSum(t *testing.T) {
	scale, warmup, d := 5.0, time.Second, 3*time.Second // 100, 100 and 50 a second
	if full {
		scale, warmup, d = 1, 8*time.Second, 65*time.Second
	}
	const most = 1.03
	rows := []*unequal{
		{policy: "round-robin", least: 0.55, most: 0.66},
		{policy: "round-robin", open: true, least: 0.5, most: 0.9},
		{policy: "round-robin", known: true, least: 0.95, most: most},
		{policy: "round-robin", known: true, open: true, least: 0.95, most: most},
		{policy: "ring", known: true, least: 0.95, most: most}, // in an open loop the luck of the clients' addresses decides
		{policy: "same-queue", least: 0.95, most: most},
		{policy: "same-queue", open: true, least: 0.95, most: most},
		{policy: "same-queue", known: true, least: 0.95, most: most},
		{policy: "same-queue", known: true, open: true, least: 0.95, most: most},
		{policy: "least-inflight", least: 0.95, most: most},
		{policy: "least-inflight", open: true, least: 0.95, most: most},
	}
	for _, u := range rows {
		u.set(t, scale, warmup, d)
	}
	var all sync.WaitGroup // together they leave the processors idle
	for _, u := range rows {
		all.Go(func() {
			before := u.cluster.Served()
			u.result, u.err = scenario.Run(t.Context(), u.cfg)
			for i, n := range u.cluster.Served() {
				u.served = append(u.served, n-before[i])
			}
		})
	}
	all.Wait()
	for _, u := range rows {
		t.Run(u.String(), func(t *testing.T) { u.judge(t, 50*scale) })
	}
}

// set starts the brokers and kvip.
func (u *unequal) set(t *testing.T, scale float64, warmup, d time.Duration) {
	u.cluster, _ = startStub(t, stub.Config{Brokers: 3, Topics: 3, Partitions: 3, Capacity: []float64{20 * scale, 20 * scale, 10 * scale}})
	var brokers []string
	for i, addr := range u.cluster.Addrs() {
		weight := 1
		if u.known {
			weight = []int{2, 2, 1}[i]
		}
		brokers = append(brokers, fmt.Sprintf("{address: %q, weight: %d}", addr, weight))
	}
	g := start(t, nil, settings{
		discovery: "{type: static, brokers: [" + strings.Join(brokers, ", ") + "]}",
		pool:      "    balancer: {policy: " + u.policy + "}", vip: "    lookup: forward",
	})
	eventually(t, 10*time.Second, "all serve", func() bool { return g.serving(t) == 3 })
	cfg := scenario.Defaults()
	cfg.Target, cfg.Clients, cfg.ClusterID = g.addr, 16, stub.ClusterID
	cfg.Warmup, cfg.Duration, cfg.Timeout = warmup, d, 10*time.Second
	cfg.Lookup = kafka.Lookup{Topics: []string{stub.TopicName(0)}, AutoCreate: true}
	switch {
	case u.open:
		rate, err := schedule.Parse(fmt.Sprint(50*scale), d)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Rate, cfg.Clients, cfg.Arrival = rate, 300, schedule.Regular
	case u.policy == "ring":
		cfg.Clients = 32 // so that each broker has some
	}
	u.cfg = cfg
}

func (u *unequal) judge(t *testing.T, sum float64) {
	if u.err != nil {
		t.Fatal(u.err)
	}
	r, failed := u.result, uint64(0)
	for class, n := range r.Failed {
		failed += n
		if n > 0 {
			t.Logf("%d x %v", n, failure.Class(class))
		}
	}
	p := r.Stages[record.Operation]
	t.Logf("%.1f of %.0f a second are carried, %d of %d fail; p50 %v, p99 %v; brokers served %v", r.Rate(), sum, failed, r.Intended,
		time.Duration(p.ValueAtPercentile(50)).Round(time.Millisecond), time.Duration(p.ValueAtPercentile(99)).Round(time.Millisecond), u.served)
	if share := r.Rate() / sum; share < u.least || share > u.most {
		t.Errorf("%.1f of %.0f a second are carried, want %.0f to %.0f", r.Rate(), sum, u.least*sum, u.most*sum)
	}
	if u.least >= 0.95 && failed > 0 {
		t.Errorf("%d lookups failed", failed)
	}
}
