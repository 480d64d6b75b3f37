//go:build e2e

package provider_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap/zaptest"

	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/discovery/provider"
	"github.com/kvip/kvip/loadtest/lab"
)

// followed is a running provider.
type followed struct {
	mu  sync.Mutex
	all []discovery.Update
}

func follow(t *testing.T, cfg provider.Config) *followed {
	t.Helper()
	p, err := cfg.Build(provider.Deps{Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	f := &followed{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx, func(u discovery.Update) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.all = append(f.all, u)
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// last is the last answer, errors apart; failing says that an error came after it.
func (f *followed) last() (u discovery.Update, failing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range slices.Backward(f.all) {
		if u.Err == nil {
			return u, failing
		}
		failing = true
	}
	return u, failing
}

// lists says whether the last read was good and had exactly these nodes, each as itself.
func (f *followed) lists(nodes ...*lab.Node) func() bool {
	return func() bool {
		u, failing := f.last()
		if failing || len(u.Instances) != len(nodes) {
			return false
		}
		for _, n := range nodes {
			if !slices.ContainsFunc(u.Instances, func(in discovery.Instance) bool {
				return in.Addr() == n.Addr() && in.NodeID == n.ID && in.Rack == n.Rack
			}) {
				return false
			}
		}
		return true
	}
}

// A cluster on a real ZooKeeper, found in there and by asking it: a broker comes, one dies, and ZooKeeper is away for
// longer than the session lasts.
func TestRealZookeeperAndTheClustersOwnList(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	k, err := lab.StartKafkaZK(ctx, lab.KafkaConfig{Nodes: 2, Racks: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	proxy, err := lab.StartFaultProxy(k.ZK())
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	const session = time.Second
	found := follow(t, &provider.ZookeeperConfig{Servers: []string{proxy.Addr()}, Listener: "CLIENT", Session: session})
	asked := follow(t, &provider.KafkaConfig{Seeds: []string{k.Node(0).Addr()}, Interval: 500 * time.Millisecond})
	wrong := follow(t, &provider.ZookeeperConfig{Servers: []string{k.ZK()}, Chroot: "/other", Session: session})
	both := func(what string, d time.Duration, nodes ...*lab.Node) {
		t.Helper()
		within(t, d, "zookeeper: "+what, found.lists(nodes...))
		within(t, d, "kafka: "+what, asked.lists(nodes...))
	}
	both("two brokers", 10*time.Second, k.Nodes()...)
	wrong.mu.Lock()
	if n := len(wrong.all); n == 0 || wrong.all[n-1].Err == nil || !strings.Contains(wrong.all[n-1].Err.Error(), "no node /other/brokers/ids") {
		t.Errorf("a wrong chroot: %+v", wrong.all)
	}
	wrong.mu.Unlock()

	// The node appears under a chroot, with brokers that are odd, and one that changes.
	tree, _, err := zk.Connect([]string{k.ZK()}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	put := func(path, data string) {
		t.Helper()
		if _, err := tree.Create(path, []byte(data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	put("/other", "")
	put("/other/brokers", "")
	put("/other/brokers/ids", "")
	put("/other/brokers/ids/1", "no JSON")
	put("/other/brokers/ids/2", `{"version":4,"host":null,"port":-1,"endpoints":["SSL://h2:9093"],"listener_security_protocol_map":{"SSL":"SSL"}}`)
	put("/other/brokers/ids/x", `{"version":1,"host":"x","port":9092}`)
	put("/other/brokers/ids/3", `{"version":4,"host":null,"port":-1,"endpoints":["TLS://h3:9093","IN_SIDE://[2001:DB8::3]:9092"],"listener_security_protocol_map":{"TLS":"SSL","IN_SIDE":"PLAINTEXT"},"rack":"r3"}`)
	odd := func(addr, rack string, node int32) func() bool {
		return func() bool {
			u, failing := wrong.last()
			return !failing && len(u.Skipped) >= 3 && len(u.Instances) == 1 && u.Instances[0].Addr() == addr && u.Instances[0].Rack == rack && u.Instances[0].NodeID == node
		}
	}
	within(t, 5*time.Second, "a chroot that appears", odd("[2001:db8::3]:9092", "r3", 3))
	if _, err := tree.Set("/other/brokers/ids/3", []byte(`{"version":2,"endpoints":["PLAINTEXT://h3:9099"]}`), -1); err != nil {
		t.Fatal(err)
	}
	within(t, 2*time.Second, "a listener that moves", odd("h3:9099", "", 3))

	third, err := k.AddNode(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	both("a third one", 3*time.Second, k.Nodes()...)

	if err := proxy.Set(lab.Faults{Refuse: true}); err != nil {
		t.Fatal(err)
	}
	proxy.ResetAll()
	within(t, 5*time.Second, "zookeeper is away", func() bool { _, failing := found.last(); return failing })
	time.Sleep(3 * session) // the server has dropped the session, and its watches
	if err := third.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := proxy.Set(lab.Faults{}); err != nil {
		t.Fatal(err)
	}
	both("the third one is dead, seen in a new session", 30*time.Second, k.Node(0), k.Node(1))
	if err := third.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	both("and back, seen by a new watch", 5*time.Second, k.Nodes()...)

	for _, f := range []*followed{found, asked} {
		f.mu.Lock()
		for _, u := range f.all {
			if u.Err == nil && len(u.Instances) < 2 || u.Err != nil && len(u.Instances) > 0 {
				t.Errorf("an update that no cluster gave cause for: %+v", u)
			}
		}
		f.mu.Unlock()
	}
}
