//go:build e2e

package provider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"

	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/discovery/provider"
	"github.com/kvip/kvip/loadtest/lab"
)

func openPool(t *testing.T, settings provider.ConsulSettings) *provider.ConsulPool {
	t.Helper()
	p, err := provider.OpenConsulPool("orders", settings, provider.ConsulConfig{Service: "kafka", Tags: []string{"plain"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// registerPlain registers brokers with the agent, as their own machines do.
func registerPlain(t *testing.T, c *lab.Consul, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := c.Register(t.Context(), lab.Service{Name: "kafka", ID: n, Address: n, Port: 9092, Tags: []string{"plain"}}); err != nil {
			t.Fatal(err)
		}
	}
}

// watchOrders runs the orders of pool orders and returns the last update, with the last orders if it has none.
func watchOrders(t *testing.T, settings provider.ConsulSettings, file string) func() discovery.Update {
	t.Helper()
	p, err := provider.NewConsulOrders("orders", file, provider.Deps{Consul: settings, Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var last discovery.Update
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx, func(u discovery.Update) {
			mu.Lock()
			defer mu.Unlock()
			if u.Orders == nil {
				u.Orders = last.Orders
			}
			last = u
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() discovery.Update {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

func TestRealConsulPoolChanges(t *testing.T) {
	c := startConsul(t, lab.ConsulConfig{})
	registerPlain(t, c, "b1", "b2", "b3")
	settings := provider.ConsulSettings{Address: c.Addr()}
	pool := openPool(t, settings)
	file := filepath.Join(t.TempDir(), "orders.json")
	orders := watchOrders(t, settings, file)
	change := func(action, broker string, more ...func(*provider.PoolChange)) provider.PoolResult {
		t.Helper()
		ch := provider.PoolChange{Action: action, Broker: broker, By: "op@test"}
		for _, m := range more {
			m(&ch)
		}
		res, err := pool.Change(t.Context(), ch)
		if err != nil {
			t.Fatalf("%s %s: %v", action, broker, err)
		}
		return res
	}
	refused := func(want, action, broker string) {
		t.Helper()
		if _, err := pool.Change(t.Context(), provider.PoolChange{Action: action, Broker: broker, By: "op"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %s: %v, want %q", action, broker, err, want)
		}
	}
	in := func(what string, removed []string, weights map[string]int) {
		t.Helper()
		within(t, 3*time.Second, what, func() bool {
			o := orders().Orders
			return o != nil && slices.Equal(o.Removed, removed) && cmp.Equal(o.Weights, weights)
		})
	}
	in("no orders", nil, map[string]int{})
	res := change("drain", "b1:9092", func(c *provider.PoolChange) { c.DryRun = true })
	if want := (provider.PoolResult{Pool: "orders", Action: "drain", Broker: "b1:9092", DryRun: true, Changed: true, Before: "registered by agent", After: "registered by agent, drained", Notes: []string{}}); !cmp.Equal(want, res) {
		t.Errorf("dry run: %s", cmp.Diff(want, res))
	}
	if s, err := pool.State(t.Context()); err != nil || len(s.Audit) != 0 || s.Members[0].Drained {
		t.Errorf("a dry run changed something: %+v %v", s, err)
	}
	change("drain", "B1:9092")
	in("b1 is drained", nil, map[string]int{"b1:9092": 0})
	if change("drain", "b1:9092").Changed {
		t.Error("a second drain changes something")
	}
	change("weight", "b2:9092", func(c *provider.PoolChange) { c.Weight = 5 })
	change("undrain", "b1:9092")
	in("b2 weighs 5", nil, map[string]int{"b2:9092": 5})
	change("weight", "b2:9092")
	// The agent's own entry stays, and is kept out.
	if res := change("remove", "b3:9092"); len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "still registers it") {
		t.Errorf("notes %q", res.Notes)
	}
	in("b3 is out", []string{"b3:9092"}, map[string]int{})
	refused("was removed by op@test", "drain", "b3:9092")
	change("drain", "b1:9092")
	refused("last broker of pool orders", "drain", "b2:9092")
	refused("last broker of pool orders", "remove", "b2:9092")
	refused("is not registered as kafka: registered are b1:9092, b2:9092, b3:9092", "drain", "b9:9092")
	change("undrain", "b1:9092")
	change("add", "b3:9092")
	in("b3 is back", nil, map[string]int{})
	// One that no agent knows comes and goes by itself, IPv6 too.
	change("add", "[2001:db8::4]:9094", func(c *provider.PoolChange) { c.Rack, c.NodeID, c.Weight = "r4", "4", 3 })
	w := watch(t, c, provider.ConsulConfig{Service: "kafka", Tags: []string{"plain"}}, "")
	within(t, 5*time.Second, "discovery takes it", w.has("[2001:db8::4]:9094", "b1:9092", "b2:9092", "b3:9092"))
	if got, want := w.last().Instances[0], (discovery.Instance{ID: "kvip-orders-2001-db8--4--9094/kafka-2001-db8--4--9094", Host: "2001:db8::4", Port: 9094, NodeID: 4, Rack: "r4", Weight: 3, Source: "consul"}); got != want {
		t.Errorf("got %+v", got)
	}
	change("remove", "[2001:db8::4]:9094")
	in("and is out again", []string{"[2001:db8::4]:9094"}, map[string]int{})
	if out := string(do(t, c, http.MethodGet, "/v1/catalog/nodes", nil)); strings.Contains(out, "kvip-orders") {
		t.Errorf("the node is still there: %s", out)
	}
	state, err := pool.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if last := state.Members[0]; last.Registered != "" || last.Order != "removed" || last.By != "op@test" {
		t.Errorf("what is left of it: %+v", last)
	}
	var actions []string
	for _, a := range state.Audit {
		actions = append(actions, a.Action+" "+a.Broker)
	}
	if want := []string{"remove [2001:db8::4]:9094", "add [2001:db8::4]:9094", "add b3:9092", "undrain b1:9092"}; !slices.Equal(actions[:4], want) || len(actions) != 10 {
		t.Errorf("audit %q", actions)
	}
	// A day later the next change forgets it.
	pool.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	change("drain", "b1:9092")
	in("its tombstone is gone", nil, map[string]int{"b1:9092": 0})
	pool.Now = time.Now

	// Operators who change things at the same time lose nothing, in the trail neither.
	var wg sync.WaitGroup
	for i, b := range []string{"b1:9092", "b2:9092", "b3:9092"} {
		wg.Go(func() {
			if _, err := pool.Change(t.Context(), provider.PoolChange{Action: "weight", Broker: b, Weight: i + 2, By: "op"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	change("undrain", "b1:9092")
	in("all three weights", nil, map[string]int{"b1:9092": 2, "b2:9092": 3, "b3:9092": 4})
	if state, err = pool.State(t.Context()); err != nil || len(state.Audit) != 15 {
		t.Errorf("%d lines in the trail, want 15: %v", len(state.Audit), err)
	}

	// One that cannot be read holds all orders up, until any command for that broker writes it anew.
	do(t, c, http.MethodPut, "/v1/kv/kvip/pools/orders/members/b1:9092", object{"weight": "two"})
	within(t, 5*time.Second, "the broken order is named", func() bool {
		return orders().Err != nil && strings.Contains(orders().Err.Error(), "members/b1:9092 cannot be read")
	})
	change("weight", "b1:9092")
	in("without it", nil, map[string]int{"b2:9092": 3, "b3:9092": 4})

	// A store that has lost its state is no order to forget, and neither is a start without Consul.
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, 20*time.Second, "the loss is noticed", func() bool {
		return orders().Err != nil && strings.Contains(orders().Err.Error(), "lost its state")
	})
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	restarted := watchOrders(t, settings, file)
	within(t, time.Second, "a restart has the orders of the last run", func() bool {
		o := restarted().Orders
		return o != nil && o.Weights["b3:9092"] == 4
	})
}

// The policies that are shipped are enough, and no more than that.
func TestRealConsulShippedPolicies(t *testing.T) {
	c := startConsul(t, lab.ConsulConfig{
		HCL:   `acl { enabled = true default_policy = "deny" tokens { initial_management = "root" agent = "root" } }`,
		Token: "root",
	})
	registerPlain(t, c, "b1", "b2")
	dir := t.TempDir()
	token := func(name string) provider.ConsulSettings {
		rules, err := os.ReadFile("../../deploy/" + name + ".hcl")
		if err != nil {
			t.Fatal(err)
		}
		do(t, c, http.MethodPut, "/v1/acl/policy", object{"Name": name, "Rules": strings.ReplaceAll(string(rules), "kafka-orders", "kafka")})
		var made struct{ SecretID string }
		if err := json.Unmarshal(do(t, c, http.MethodPut, "/v1/acl/token", object{"Policies": []object{{"Name": name}}}), &made); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(made.SecretID), 0o600); err != nil {
			t.Fatal(err)
		}
		return provider.ConsulSettings{Address: c.Addr(), TokenFile: file}
	}
	kvip, operator := token("consul-policy"), token("consul-policy-operator")
	w := watch(t, c, provider.ConsulConfig{Service: "kafka"}, kvip.TokenFile)
	within(t, 5*time.Second, "kvip reads the brokers", w.has("b1:9092", "b2:9092"))
	orders := watchOrders(t, kvip, "")
	within(t, 5*time.Second, "and the orders", func() bool { return orders().Orders != nil })

	for _, ch := range []provider.PoolChange{{Action: "add", Broker: "b3:9092"}, {Action: "drain", Broker: "b1:9092"}, {Action: "remove", Broker: "b3:9092"}} {
		if _, err := openPool(t, operator).Change(t.Context(), ch); err != nil {
			t.Errorf("an operator's %s: %v", ch.Action, err)
		}
		if _, err := openPool(t, kvip).Change(t.Context(), provider.PoolChange{Action: "weight", Broker: "b2:9092", Weight: 7}); err == nil || !strings.Contains(err.Error(), "needs key_prefix") {
			t.Errorf("kvip's own token may change a weight: %v", err)
		}
	}
	within(t, 3*time.Second, "kvip hears of it", func() bool {
		return orders().Orders != nil && orders().Orders.Weights["b1:9092"] == 0 && len(orders().Orders.Removed) == 1
	})

	self, err := provider.NewSelfRegistration(provider.RegisterConfig{Service: "kvip", TTL: 2 * time.Second},
		provider.Deps{Consul: kvip, Log: zaptest.NewLogger(t)},
		[]provider.SelfEntry{{Name: "orders", Pool: "orders", Listen: func() string { return "127.0.0.1:19092" }, Ready: func() (bool, string) { return true, "" }}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = self.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	listed := func() string {
		return string(do(t, c, http.MethodGet, "/v1/health/service/kvip?passing", nil))
	}
	within(t, 5*time.Second, "kvip lists itself", func() bool { return strings.Contains(listed(), "kvip-127-0-0-1-19092") })
	self.Leave(t.Context())
	within(t, time.Second, "and no more", func() bool { return strings.TrimSpace(listed()) == "[]" })
}

// A removal outlives the broker's agent, however long that is away; only add takes it back.
func TestRealConsulRemovalOutlivesTheAgent(t *testing.T) {
	c := startConsul(t, lab.ConsulConfig{})
	registerPlain(t, c, "b1", "b2")
	settings := provider.ConsulSettings{Address: c.Addr()}
	pool, orders := openPool(t, settings), watchOrders(t, settings, "")
	change := func(action, broker string) {
		t.Helper()
		if _, err := pool.Change(t.Context(), provider.PoolChange{Action: action, Broker: broker, Weight: 2, By: "op"}); err != nil {
			t.Fatal(err)
		}
	}
	change("remove", "b2:9092")
	do(t, c, http.MethodPut, "/v1/agent/service/deregister/b2", nil)
	pool.Now = func() time.Time { return time.Now().Add(1000 * time.Hour) }
	change("weight", "b1:9092")
	within(t, 3*time.Second, "b2 is still out", func() bool {
		o := orders().Orders
		return o != nil && len(o.Weights) == 1 && slices.Equal(o.Removed, []string{"b2:9092"})
	})
	registerPlain(t, c, "b2")
	change("add", "b2:9092")
	within(t, 3*time.Second, "and back", func() bool { return len(orders().Orders.Removed) == 0 })
}

// However many operators change one pool at once, all of it is done and told, and what the trail says last is how it is.
func TestRealConsulOperatorsAtOnce(t *testing.T) {
	c := startConsul(t, lab.ConsulConfig{})
	registerPlain(t, c, "b1", "b2")
	pool := openPool(t, provider.ConsulSettings{Address: c.Addr()})
	at := func(changes ...provider.PoolChange) (errs []error) {
		errs = make([]error, len(changes))
		var wg sync.WaitGroup
		for i, ch := range changes {
			ch.By = "op"
			wg.Go(func() { _, errs[i] = pool.Change(t.Context(), ch) })
		}
		wg.Wait()
		return errs
	}
	var many []provider.PoolChange
	for i := range 20 {
		many = append(many, provider.PoolChange{Action: "add", Broker: fmt.Sprintf("10.0.0.%d:9092", i)})
	}
	for i, err := range at(many...) {
		if err != nil {
			t.Errorf("add %s: %v", many[i].Broker, err)
		}
	}
	s, err := pool.State(t.Context())
	if err != nil || len(s.Members) != 22 || len(s.Audit) != 20 {
		t.Fatalf("%d members and %d lines in the trail: %v", len(s.Members), len(s.Audit), err)
	}
	for _, a := range s.Audit {
		if a.Before != "not registered" {
			t.Errorf("%s %s was %q before", a.Action, a.Broker, a.Before)
		}
	}
	for range 50 {
		const x = "10.0.0.7:9092"
		at(provider.PoolChange{Action: "add", Broker: x}, provider.PoolChange{Action: "remove", Broker: x})
		s, err := pool.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := s.Members[slices.IndexFunc(s.Members, func(m provider.PoolMember) bool { return m.Broker == x })]
		if last := s.Audit[0].Action; (last == "add") != (m.Registered != "" && !m.Removed) {
			t.Errorf("the trail ends with %s, and it is registered by %q, order %q", last, m.Registered, m.Order)
		}
		at(provider.PoolChange{Action: "add", Broker: x})
	}
}
