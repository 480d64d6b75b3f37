//go:build e2e

package provider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"

	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/discovery/provider"
	"github.com/kvip/kvip/loadtest/lab"
)

func startConsul(t *testing.T, cfg lab.ConsulConfig) *lab.Consul {
	t.Helper()
	c, err := lab.StartConsul(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func do(t *testing.T, c *lab.Consul, method, path string, body any) []byte {
	t.Helper()
	out, err := c.Do(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// counted counts requests on their way to Consul.
type counted struct {
	http.RoundTripper
	n *atomic.Int32
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// watched is a running watcher over one consul provider.
type watched struct {
	*discovery.Watcher
	queries atomic.Int32

	mu      sync.Mutex
	members []string
	lowest  int // the smallest membership since the first
	update  discovery.Update
}

// tapped hands each update to the test on its way.
type tapped struct {
	discovery.Refresher
	tap func(discovery.Update)
}

func (p tapped) Run(ctx context.Context, publish func(discovery.Update)) error {
	return p.Refresher.Run(ctx, func(u discovery.Update) {
		p.tap(u)
		publish(u)
	})
}

func watch(t *testing.T, c *lab.Consul, cfg provider.ConsulConfig, tokenFile string) *watched {
	t.Helper()
	w := &watched{lowest: 1 << 30}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	p, err := cfg.Build(provider.Deps{
		Log:       zaptest.NewLogger(t),
		Consul:    provider.ConsulSettings{Address: c.Addr(), TokenFile: tokenFile},
		Transport: counted{transport, &w.queries},
	})
	if err != nil {
		t.Fatal(err)
	}
	tap := tapped{p.(discovery.Refresher), func(u discovery.Update) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.update = u
	}}
	w.Watcher, err = discovery.NewWatcher(discovery.WatchConfig{ShrinkHold: 2 * time.Second, Log: zaptest.NewLogger(t)}, []discovery.Provider{tap})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx, func(v discovery.View) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.members = nil
			for _, m := range v.Members {
				w.members = append(w.members, m.Addr())
			}
			w.lowest = min(w.lowest, len(v.Members))
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *watched) last() discovery.Update {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.update
}

// within polls until ok, and fails the test when that takes longer.
func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	begun := time.Now()
	for !ok() {
		if time.Since(begun) > d {
			t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("after %v: %s", time.Since(begun).Round(time.Millisecond), what)
}

func (w *watched) has(members ...string) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Equal(w.members, members)
	}
}

type object = map[string]any

func TestRealConsulEntriesThatAreEasyToMisread(t *testing.T) { // BL-11
	c := startConsul(t, lab.ConsulConfig{})
	entry := func(id, node, host string, port int, checks ...object) object {
		for _, ch := range checks {
			ch["Node"] = "n-" + id
		}
		return object{
			"Node": "n-" + id, "Address": node, "Checks": checks,
			"Service": object{"ID": id, "Service": "kafka", "Address": host, "Port": port, "Tags": []string{"plain"}},
		}
	}
	check := func(id, service, status string) object {
		return object{"CheckID": id, "ServiceID": service, "Status": status}
	}
	e5 := entry("e5", "127.0.0.15", "", 19092, check("service:e5", "e5", "warning"))
	e5["Service"].(object)["Meta"] = object{"rack": "r5", "node_id": "5"}
	e5["Service"].(object)["Weights"] = object{"Passing": 10, "Warning": 3}
	e10 := entry("e10", "127.0.0.20", "", 19092)
	e10["Service"].(object)["Tags"] = []string{"other"}
	for _, e := range []object{
		entry("e1", "127.0.0.11", "", 19092, check("service:e1", "e1", "passing")),
		entry("e2", "127.0.0.99", "127.0.0.12", 19092),
		entry("e3", "127.0.0.13", "", 19092, check("service:e3", "e3", "critical")),
		entry("e4", "127.0.0.14", "", 19092, check("service:e4", "e4", "passing"), check("serfHealth", "", "critical")),
		e5,
		entry("e6", "127.0.0.16", "", 19092, check("_service_maintenance:e6", "e6", "critical")),
		entry("e7", "127.0.0.17", "", 19092, check("a", "e7", "passing"), check("b", "e7", "critical")),
		entry("e8", "127.0.0.18", "", 0),
		entry("e9", "127.0.0.98", "127.0.0.12", 19092),
		e10,
	} {
		do(t, c, http.MethodPut, "/v1/catalog/register", e)
	}
	w := watch(t, c, provider.ConsulConfig{Service: "kafka", Tags: []string{"plain"}}, "")
	within(t, 5*time.Second, "all entries are read", w.has("127.0.0.11:19092", "127.0.0.12:19092", "127.0.0.15:19092"))
	u := w.last()
	want := []discovery.Instance{
		{ID: "n-e1/e1", Host: "127.0.0.11", Port: 19092, NodeID: -1, Weight: 1, Source: "consul"},
		{ID: "n-e2/e2", Host: "127.0.0.12", Port: 19092, NodeID: -1, Weight: 1, Source: "consul"},
		{ID: "n-e5/e5", Host: "127.0.0.15", Port: 19092, NodeID: 5, Rack: "r5", Weight: 3, Warning: true, Source: "consul"},
	}
	if diff := cmp.Diff(want, u.Instances); diff != "" || u.Stale {
		t.Errorf("stale %v, instances differ (-want +got):\n%s", u.Stale, diff)
	}
	reasons := map[string]string{}
	for _, s := range u.Skipped {
		reasons[s.ID[strings.Index(s.ID, "/")+1:]] = s.Reason
	}
	wantReasons := map[string]string{
		"e3": "critical", "e4": "critical", "e6": "maintenance", "e7": "critical", "e8": "no_port", "e9": "duplicate", "e10": "tag",
	}
	if diff := cmp.Diff(wantReasons, reasons); diff != "" {
		t.Errorf("skipped differ (-want +got):\n%s", diff)
	}
	do(t, c, http.MethodPut, "/v1/catalog/register", entry("e3", "127.0.0.13", "", 19092, check("service:e3", "e3", "passing")))
	within(t, 2*time.Second, "a check that flips is followed", w.has("127.0.0.11:19092", "127.0.0.12:19092", "127.0.0.13:19092", "127.0.0.15:19092"))
	do(t, c, http.MethodPut, "/v1/catalog/register", entry("e1", "127.0.0.11", "", 19092, check("service:e1", "e1", "critical")))
	within(t, 2*time.Second, "and one that flips to critical", w.has("127.0.0.12:19092", "127.0.0.13:19092", "127.0.0.15:19092"))
}

func register(t *testing.T, c *lab.Consul, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := c.Register(t.Context(), lab.Service{Name: "kafka", ID: n, Address: n, Port: 9092}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRealConsulRestartedEmpty(t *testing.T) { // BL-12
	c := startConsul(t, lab.ConsulConfig{})
	register(t, c, "b1", "b2", "b3")
	churn := func(n int) {
		do(t, c, http.MethodPut, "/v1/catalog/register", object{"Node": "other", "Address": "10.0.0.1", "Service": object{"ID": fmt.Sprint("x", n), "Service": "other"}})
	}
	for i := range 300 {
		churn(i)
	}
	w := watch(t, c, provider.ConsulConfig{Service: "kafka"}, "")
	within(t, 5*time.Second, "three members", w.has("b1:9092", "b2:9092", "b3:9092"))

	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	before := w.queries.Load()
	time.Sleep(10 * time.Second)
	if n := w.queries.Load() - before; n < 3 || n > 20 {
		t.Errorf("%d queries in 10 s without an agent, want under 2 a second", n)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // the catalogue is empty
	register(t, c, "b1", "b2", "b4")
	within(t, 3*time.Second, "the new member is in", func() bool {
		return w.has("b1:9092", "b2:9092", "b3:9092", "b4:9092")() || w.has("b1:9092", "b2:9092", "b4:9092")()
	})
	within(t, 5*time.Second, "the one that is gone leaves after its hold", w.has("b1:9092", "b2:9092", "b4:9092"))
	if w.lowest < 3 {
		t.Errorf("the membership went down to %d", w.lowest)
	}

	before = w.queries.Load()
	begun := time.Now()
	for i := 0; time.Since(begun) < 10*time.Second; i++ {
		churn(i)
		// Of the watched service too, so that every wait ends at once.
		if i%10 == 0 {
			register(t, c, "b4")
			do(t, c, http.MethodPut, "/v1/agent/service/maintenance/b4?enable="+fmt.Sprint(i%20 == 0), nil)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := w.queries.Load() - before; n >= 50 {
		t.Errorf("%d queries in 10 s of churn, want under 5 a second", n)
	}
}

func TestRealConsulWithACLs(t *testing.T) {
	c := startConsul(t, lab.ConsulConfig{
		HCL:   `acl { enabled = true default_policy = "deny" tokens { initial_management = "root" agent = "root" } }`,
		Token: "root",
	})
	register(t, c, "b1", "b2")
	do(t, c, http.MethodPut, "/v1/acl/policy", object{"Name": "kvip", "Rules": `service "kafka" { policy = "read" } node_prefix "" { policy = "read" }`})
	newToken := func(policies ...object) (id, secret string) {
		var token struct{ AccessorID, SecretID string }
		if err := json.Unmarshal(do(t, c, http.MethodPut, "/v1/acl/token", object{"Policies": policies}), &token); err != nil {
			t.Fatal(err)
		}
		return token.AccessorID, token.SecretID
	}
	_, none := newToken()
	id, good := newToken(object{"Name": "kvip"})
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(none)
	watching := watch(t, c, provider.ConsulConfig{Service: "kafka"}, file)
	refused := func() bool {
		err := watching.last().Err
		return err != nil && strings.Contains(err.Error(), "service:read")
	}
	within(t, 5*time.Second, "a token without rights is named", refused)
	write(good)
	within(t, 5*time.Second, "a token with rights is used", watching.has("b1:9092", "b2:9092"))
	do(t, c, http.MethodDelete, "/v1/acl/token/"+id, nil)
	register(t, c, "b3") // which ends the wait
	within(t, 10*time.Second, "a revoked token is named", refused)
	if !watching.has("b1:9092", "b2:9092")() {
		t.Errorf("the members did not stay: %v", watching.members)
	}
}

// Consul's own DNS, which is a real one: addresses and services, over TCP what does not fit in a datagram, and changes as
// soon as the TTL is over.
func TestRealDNS(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := l.LocalAddr().String()
	_, port, _ := net.SplitHostPort(server)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c := startConsul(t, lab.ConsulConfig{HCL: "ports { dns = " + port + ` } dns_config { service_ttl { "*" = "1s" } enable_truncate = true udp_answer_limit = 100 }`})
	put := func(i int) {
		t.Helper()
		ip := fmt.Sprintf("127.0.1.%d", i)
		if err := c.Register(t.Context(), lab.Service{Name: "kafka", ID: ip, Address: ip, Port: 9000 + i}); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	put(2)
	const never = time.Hour
	a := follow(t, &provider.DNSConfig{Name: "kafka.service.consul", Port: 9092, Record: "a", Server: server, Interval: never})
	srv := follow(t, &provider.DNSConfig{Name: "_kafka._tcp.service.consul", Port: 9092, Server: server, Interval: never})
	none := follow(t, &provider.DNSConfig{Name: "kafka.service.consul", Port: 9092, Record: "aaaa", Server: server, Interval: never})
	lists := func(f *followed, n int, addr string) func() bool {
		return func() bool {
			u, failing := f.last()
			return !failing && len(u.Instances) == n && slices.ContainsFunc(u.Instances, func(in discovery.Instance) bool { return in.Addr() == addr })
		}
	}
	within(t, 5*time.Second, "addresses", lists(a, 2, "127.0.1.2:9092"))
	within(t, 5*time.Second, "services", lists(srv, 2, "7f000102.addr.dc1.consul:9002"))
	within(t, 5*time.Second, "no address of the other kind", func() bool { _, failing := none.last(); return failing })
	put(3)
	within(t, 3*time.Second, "a third address", lists(a, 3, "127.0.1.3:9092"))
	within(t, 3*time.Second, "a third service", lists(srv, 3, "7f000103.addr.dc1.consul:9003"))
	for i := 4; i <= 60; i++ {
		put(i)
	}
	within(t, 3*time.Second, "more than a datagram holds", lists(srv, 60, "7f00013c.addr.dc1.consul:9060"))
	do(t, c, http.MethodPut, "/v1/agent/service/deregister/127.0.1.60", nil)
	within(t, 3*time.Second, "the TTL is seen over TCP, too", lists(srv, 59, "7f00013b.addr.dc1.consul:9059"))
}
