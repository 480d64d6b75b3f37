package admin_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/cmd/kvip/internal/admin"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/protocol/front"
	"github.com/kvip/kvip/protocol/session"
)

var update = flag.Bool("update", false, "rewrite the expected texts in testdata")

// gnet starts the goroutines of its default worker pool when it is loaded.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }

// source is a process in a fixed state.
type source struct {
	status     admin.Status
	conditions []admin.Condition
}

func (s source) Status() admin.Status          { return s.status }
func (s source) Conditions() []admin.Condition { return s.conditions }

func (s source) Explain(client netip.AddrPort) []admin.Explanation {
	return []admin.Explanation{{Explanation: backends.Explanation{Pool: "orders", Client: client.String(), Skipped: []backends.Skipped{}}}}
}

// Whoever adds a reason for closing says what it means.
func TestEachReasonHasAMeaning(t *testing.T) {
	all := session.Reasons()
	for _, r := range all {
		if admin.Meaning(r.String()) == "" {
			t.Errorf("a close for %q has no meaning: add one to reasons.go", r)
		}
	}
}

func TestExplain(t *testing.T) {
	base := start(t, source{}, admin.Config{})
	for query, want := range map[string]string{
		"client=10.1.2.3":            `"client": "10.1.2.3:0"`,
		"client=10.1.2.3:40000":      `"client": "10.1.2.3:40000"`,
		"client=[2001:db8::1]:40000": `"client": "[2001:db8::1]:40000"`,
		"client=2001:db8::1":         `"client": "[2001:db8::1]:0"`,
		"client=kafka":               `client "kafka" is no address: write an IP`,
		"":                           `client "" is no address`,
	} {
		resp, err := http.Get(base + "/explain?" + query)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if !strings.Contains(string(body), want) || (resp.StatusCode == http.StatusOK) != strings.HasPrefix(want, `"`) {
			t.Errorf("%s: %s %s, want %s", query, resp.Status, body, want)
		}
	}
}

// start serves src and returns its base URL.
func start(t *testing.T, src admin.Source, cfg admin.Config) string {
	t.Helper()
	reg := prometheus.NewRegistry()
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{Name: "kvip_test", Help: "A test."}).Set(7)
	cfg.Listen = "127.0.0.1:0"
	s := admin.New(cfg, src, reg, zaptest.NewLogger(t))
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		http.DefaultClient.CloseIdleConnections()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return "http://" + s.Addr()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// example is a process with one VIP, one pool of two brokers, one of them down.
func example() admin.Status {
	started := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return admin.Status{
		Healthy: true, PID: 4711, Version: "v1.2.3", Started: started, UptimeSeconds: 93784,
		Descriptors: admin.Descriptors{Limit: 20000, Reserve: 200},
		VIPs: []admin.VIP{{
			Status: front.Status{
				Name: "orders", Listen: "0.0.0.0:9092", Connections: 12, Cap: 19800, Closed: map[string]uint64{"client": 7},
				LastClosed: []front.Closed{{At: started.Add(time.Hour), Peer: netip.MustParseAddrPort("10.9.0.1:53124"), Reason: "client", Requests: 2, Age: "400ms"}},
			},
			Pool: "orders", Lookup: "snapshot", Ready: true,
		}},
		Pools: []backends.Status{{
			Pool: "orders", Policy: "round-robin", Ready: true, ClusterID: "MkU3OEVBNTcwNTJENDM2Qg", ClusterIDFrom: "majority",
			Members: []backends.MemberStatus{
				{Broker: "10.0.0.1:9092", Source: "static", NodeID: 1, Rack: "a", Weight: 1, State: "serving", Since: started.Add(time.Second), LastProbe: "ok", LastProbeMS: 0.8, SharePercent: 100, Forwardable: true, Listed: true},
				{Broker: "10.0.0.2:9092", Source: "static", NodeID: -1, Weight: 1, State: "down", Reason: "refused", Detail: "connect: connection refused", Since: started.Add(26 * time.Hour), LastProbe: "refused", LastProbeMS: 0.2},
			},
			Snapshot: backends.SnapshotStatus{Generation: 42, AgeSeconds: 0.4, Fresh: true, Usable: true, KRaft: true, Brokers: 2, Topics: 3, Partitions: 18, EffectiveMaxAgeSeconds: 1, RefreshSeconds: 0.002, APIKeys: 70},
			Discovery: []backends.DiscoveryStatus{
				{Provider: "static", LastSuccess: started, Instances: 2},
				{Provider: "consul", LastSuccess: started.Add(25 * time.Hour), LastError: "connection refused", ErrorSince: started.Add(26 * time.Hour)},
			},
			Alarms: []string{"broker 10.0.0.2:9092 is down: connection refused"},
		}},
	}
}

// TestStatusGolden holds the JSON that scripts read and the page that people read.
func TestStatusGolden(t *testing.T) {
	base := start(t, source{status: example()}, admin.Config{})
	for path, file := range map[string]string{"/statusz.json": "testdata/statusz.json", "/": "testdata/page.txt"} {
		code, got := get(t, base+path)
		if code != http.StatusOK {
			t.Errorf("GET %s = %d", path, code)
		}
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("GET %s differs from %s (go test -update rewrites it):\n%s", path, file, diff)
		}
	}
}

// TestReadyz: 503 as soon as one condition fails, with the first that does; ?verbose lists all.
// A large pool in trouble does not push its verdict and tables off the screen.
func TestTextIsBounded(t *testing.T) {
	s := example()
	p := &s.Pools[0]
	for i := range 2000 {
		addr := fmt.Sprintf("10.1.%d.%d:9092", i/256, i%256)
		p.Held = append(p.Held, discovery.Held{Addr: addr, Why: "no provider lists any broker"})
		p.Alarms = append(p.Alarms, addr+" is quarantined")
	}
	lines := strings.Split(s.Text(), "\n")
	if len(lines) > 60 {
		t.Errorf("%d lines", len(lines))
	}
	for _, want := range []string{"and 1981 more alarms: kvip status --json has them", "and 1980 more that no registry lists"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in:\n%s", want, s.Text())
		}
	}
}

func TestReadyz(t *testing.T) {
	good := admin.Condition{Name: "vip orders", OK: true, Detail: "listens on 0.0.0.0:9092"}
	bad := admin.Condition{Name: "pool orders", Detail: "no snapshot yet"}
	worse := admin.Condition{Name: "pool spare", Detail: "no brokers"}
	for _, c := range []struct {
		name       string
		conditions []admin.Condition
		path       string
		code       int
		body       string
	}{
		{"all hold", []admin.Condition{good}, "/readyz", 200, "ready\n"},
		{"all hold, verbose", []admin.Condition{good}, "/readyz?verbose", 200, "[+] vip orders: listens on 0.0.0.0:9092\nready\n"},
		{"two fail", []admin.Condition{good, bad, worse}, "/readyz", 503, "not ready: pool orders: no snapshot yet\n"},
		{"two fail, verbose", []admin.Condition{good, bad, worse}, "/readyz?verbose", 503, "[+] vip orders: listens on 0.0.0.0:9092\n[-] pool orders: no snapshot yet\n[-] pool spare: no brokers\nnot ready: pool orders: no snapshot yet\n"},
		{"livez does not mind", []admin.Condition{bad}, "/livez", 200, "ok\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, body := get(t, start(t, source{conditions: c.conditions}, admin.Config{})+c.path)
			if code != c.code || body != c.body {
				t.Errorf("GET %s = %d %q, want %d %q", c.path, code, body, c.code, c.body)
			}
		})
	}
}

// TestSurface: metrics come from the injected registry, pprof is there only when asked for, nothing else is, and nothing
// takes a POST.
func TestSurface(t *testing.T) {
	base := start(t, source{}, admin.Config{})
	if code, body := get(t, base+"/metrics"); code != 200 || !strings.Contains(body, "kvip_test 7\n") {
		t.Errorf("GET /metrics = %d %q", code, body)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/nothing"} {
		if code, _ := get(t, base+path); code != http.StatusNotFound {
			t.Errorf("GET %s = %d, want 404", path, code)
		}
	}
	resp, err := http.Post(base+"/readyz", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /readyz = %d, want 405", resp.StatusCode)
	}
	if code, _ := get(t, start(t, source{}, admin.Config{Pprof: true})+"/debug/pprof/cmdline"); code != 200 {
		t.Errorf("GET /debug/pprof/cmdline with pprof = %d", code)
	}
}

// TestConnectionsAreBounded: more clients than slots wait, hold no descriptor beyond the bound, and are served when a slot
// is free.
func TestConnectionsAreBounded(t *testing.T) {
	base := start(t, source{}, admin.Config{})
	addr := strings.TrimPrefix(base, "http://")
	var idle []net.Conn
	for range admin.MaxConns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// A whole request makes sure that the connection holds a slot.
		fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := c.Read(make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	one, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	fmt.Fprint(one, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	_ = one.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := one.Read(make([]byte, 1)); err == nil {
		t.Fatalf("served %d bytes beyond the bound", n)
	}
	idle[0].Close()
	_ = one.SetReadDeadline(time.Now().Add(10 * time.Second))
	if body, err := io.ReadAll(one); err != nil || !strings.Contains(string(body), "ok\n") {
		t.Errorf("after a slot is free: %q, %v", body, err)
	}
}

// TestLargeHeadersAreRefused: a request header beyond the bound gets 431, not memory.
func TestLargeHeadersAreRefused(t *testing.T) {
	base := start(t, source{}, admin.Config{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/livez", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Large", strings.Repeat("x", 64<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d, want 431", resp.StatusCode)
	}
}
