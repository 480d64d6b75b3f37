package backends

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvip/kvip/backends/snapshot"
)

func snapshotRules(clusterID string) snapshot.Rules { return snapshot.Rules{ClusterID: clusterID} }

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", three)
		w.up(Config{}, 9092, 9093, -9094)
		time.Sleep(10 * time.Second)
		problems, err := testutil.GatherAndLint(w.metrics)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		for name, want := range map[string]float64{
			"kvip_snapshot_generation{pool=orders}":                                   1,
			"kvip_snapshot_rejected_total{pool=orders,reason=no_brokers}":             0,
			"kvip_backend_up{broker=localhost:9092,pool=orders}":                      1,
			"kvip_backend_state{broker=localhost:9092,pool=orders,state=serving}":     1,
			"kvip_backend_state{broker=localhost:9092,pool=orders,state=quarantined}": 0,
			"kvip_backend_state{broker=localhost:9094,pool=orders,state=draining}":    1,
			"kvip_backend_inflight{broker=localhost:9092,pool=orders}":                0,
			"kvip_pool_members{pool=orders,state=serving}":                            2,
			"kvip_pool_members{pool=orders,state=draining}":                           1,
			"kvip_pool_members{pool=orders,state=down}":                               0,
			"kvip_pool_ready{pool=orders}":                                            1,
		} {
			if got, err := gathered(w, name); err != nil || got != want {
				t.Errorf("%s is %v (%v), want %v", name, got, err, want)
			}
		}
		if age, err := gathered(w, "kvip_snapshot_age_seconds{pool=orders}"); err != nil || age < 0 || age > 1 {
			t.Errorf("age %v (%v)", age, err)
		}
		start := float64(time.Now().Unix())
		if last, err := gathered(w, "kvip_discovery_last_success_seconds{pool=orders}"); err != nil || last < start-20 || last > start {
			t.Errorf("last success %v (%v)", last, err)
		}
		w.registry.list(9092)
		time.Sleep(time.Second)
		if _, err := gathered(w, "kvip_backend_up{broker=localhost:9093,pool=orders}"); err == nil {
			t.Error("a broker that has left has left a series")
		}
		w.stop()
		if n, err := testutil.GatherAndCount(w.metrics); err != nil || n != 0 {
			t.Errorf("%d series are left after the pool's end (%v)", n, err)
		}
	})
}

// What status, readyz and the log say of a pool that cannot serve is the first thing to mend.
func TestReadinessNamesTheFirstFailingRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(Config{ClusterID: "A"})
		want := func(text string) {
			t.Helper()
			if ok, why := p.Ready(); ok || !strings.Contains(why, text) {
				t.Errorf("ready: %v, %q, want %q in it", ok, why, text)
			}
		}
		synctest.Wait()
		want("no registry has told of a broker yet")
		w.registry.list(9092)
		time.Sleep(5 * time.Second)
		want("no broker can be used: localhost:9092 connect")
		c := w.cluster("B", []int{9092})
		time.Sleep(5 * time.Second)
		want("localhost:9092 wrong_cluster")
		c.Close()
	})
}
