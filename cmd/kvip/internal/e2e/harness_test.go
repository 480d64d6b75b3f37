//go:build e2e

package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
)

// kvipBinary is kvip as built for these tests.
var kvipBinary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kvip-e2e-")
	if err != nil {
		panic(err)
	}
	kvipBinary = filepath.Join(dir, "kvip")
	build := exec.Command("go", "build", "-o", kvipBinary, "github.com/kvip/kvip/cmd/kvip")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build kvip:", err)
		os.Exit(1)
	}
	code := m.Run()
	closeShared()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// within returns a context that ends with the test or after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// shared is the cluster of the tests that change nothing which others would mind: three nodes, all registered.
var shared struct {
	once   sync.Once
	kafka  *lab.Kafka
	consul *lab.Consul
	err    error
}

func closeShared() {
	if shared.kafka != nil {
		_ = shared.kafka.Close()
	}
	if shared.consul != nil {
		_ = shared.consul.Close()
	}
}

func sharedLab(t *testing.T) (*lab.Kafka, *lab.Consul) {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // the first run builds and fetches
		defer cancel()
		if shared.consul, shared.err = lab.StartConsul(ctx, lab.ConsulConfig{}); shared.err != nil {
			return
		}
		if shared.kafka, shared.err = lab.StartKafka(ctx, lab.KafkaConfig{
			Racks: []string{"a", "b"}, AdvertisedHosts: []string{"127.0.0.11", "localhost", "::1"},
		}); shared.err != nil {
			return
		}
		for i, name := range topics {
			if shared.err = shared.kafka.CreateTopic(ctx, name, 3, 3-i); shared.err != nil {
				return
			}
		}
		shared.err = errors.New("the shared cluster never named a coordinator") // for the tests after one that gives up here
		coordinated(t, shared.kafka)
		shared.err = register(ctx, shared.consul, shared.kafka.Nodes()...)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.kafka, shared.consul
}

// topics exist on the shared cluster, with replication factors 3, 2 and 1.
var topics = [3]string{"orders", "payments", "audit.log"}

// coordinated waits until every broker names a coordinator: the first to be asked makes the topic that has them.
func coordinated(t *testing.T, k *lab.Kafka) {
	t.Helper()
	eventually(t, 30*time.Second, "every broker names a coordinator", func() bool {
		return !slices.ContainsFunc(k.Nodes(), func(n *lab.Node) bool {
			q := kmsg.NewPtrFindCoordinatorRequest()
			q.Version, q.CoordinatorKey = 3, "warm"
			resp, err := lab.Exchange(within(t, 5*time.Second), n.Addr(), q)
			return err != nil || resp.(*kmsg.FindCoordinatorResponse).ErrorCode != 0
		})
	})
}

const service = "kafka-orders"

func register(ctx context.Context, c *lab.Consul, nodes ...*lab.Node) error {
	for _, n := range nodes {
		if err := c.Register(ctx, n.Service(service)); err != nil {
			return err
		}
	}
	return nil
}

// gateway is a running kvip.
type gateway struct {
	*lab.Process
	addr, admin string
	dir         string
}

// settings are what a test changes of the usual configuration.
type settings struct {
	discovery string // instead of the given registry
	token     string // for the registry
	pool, vip string // further lines of the pool and of the VIP, in YAML, indented as there
	listen    string // 127.0.0.1 by default
	notReady  bool   // do not wait for /readyz
	prefix    []string
}

// start runs kvip over the brokers in consul and waits until a client could bootstrap.
func start(t *testing.T, consul *lab.Consul, s settings) *gateway {
	t.Helper()
	if s.listen == "" {
		s.listen = "127.0.0.1"
	}
	port, free, err := lab.ReservePort(s.listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(free)
	adminPort, freeAdmin, err := lab.ReservePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(freeAdmin)
	g := &gateway{addr: net.JoinHostPort(s.listen, fmt.Sprint(port)), admin: fmt.Sprintf("127.0.0.1:%d", adminPort), dir: t.TempDir()}
	consulAddr := "127.0.0.1:8500"
	if consul != nil {
		consulAddr = consul.Addr()
	}
	if s.discovery == "" {
		s.discovery = "{type: consul, service: " + service + "}"
	}
	tokenFile := ""
	if s.token != "" {
		tokenFile = filepath.Join(g.dir, "token")
		if err := os.WriteFile(tokenFile, []byte(s.token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := fmt.Sprintf(`log: {level: debug, format: json}
admin: {listen: %q}
state_dir: %s
consul: {address: %q, token_file: %q}
pools:
  - name: orders
    discovery: %s
%s
vips:
  - name: orders
    listen: %q
    pool: orders
%s
`, g.admin, filepath.Join(g.dir, "state"), consulAddr, tokenFile, s.discovery, s.pool, g.addr, s.vip)
	file := filepath.Join(g.dir, "kvip.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append(s.prefix, kvipBinary, "serve", "-c", file)
	g.Process, err = lab.StartProcess(lab.ProcessConfig{Name: "kvip", Path: args[0], Args: args[1:], LogPath: filepath.Join(g.dir, "kvip.log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := g.Stop(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(g.LogTail())
		}
		if out, _ := os.ReadFile(g.LogPath()); strings.Contains(string(out), "panic") {
			t.Errorf("kvip's log has a panic:\n%s", g.LogTail())
		}
	})
	if !s.notReady {
		g.waitReady(t)
	}
	return g
}

func (g *gateway) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, 20*time.Second, "kvip is ready", func() bool {
		select {
		case <-g.Exited():
			t.Fatalf("kvip ended at its start%s", g.LogTail())
		default:
		}
		resp, err := http.Get("http://" + g.admin + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// status is the part of /statusz.json that tests look at.
type status struct {
	VIPs []struct {
		Connections int               `json:"connections"`
		Cap         int               `json:"cap"`
		Closed      map[string]uint64 `json:"closed"`
	} `json:"vips"`
	Pools []struct {
		Members []memberStatus `json:"members"`
		// View counts the pool's views.
		View     uint64 `json:"view"`
		Forwards struct{ Connections int }
		Snapshot struct {
			Generation uint64
			Brokers    int
			Topics     int
			AgeSeconds float64 `json:"age_seconds"`
		} `json:"snapshot"`
	} `json:"pools"`
}

type memberStatus struct {
	Broker, State, Reason string
	NodeID                int32 `json:"node_id"`
	Weight                int
	Forwardable           bool
	Connections           int
}

func (g *gateway) status(t *testing.T) status {
	t.Helper()
	var s status
	g.statusz(t, &s)
	if len(s.VIPs) != 1 || len(s.Pools) != 1 {
		t.Fatalf("statusz: %+v", s)
	}
	return s
}

// statusz reads /statusz.json. Where the machine has no time for it, it asks again.
func (g *gateway) statusz(t *testing.T, into any) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + g.admin + "/statusz.json")
		if err == nil {
			err = json.NewDecoder(resp.Body).Decode(into)
			_ = resp.Body.Close()
		}
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("statusz: %v", err)
		}
	}
}

// closed returns how many connections ended for a reason.
func (g *gateway) closed(t *testing.T, reason string) uint64 {
	return g.status(t).VIPs[0].Closed[reason]
}

func eventually(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// readFrame reads one whole answer.
func readFrame(c io.Reader) ([]byte, error) {
	frame := make([]byte, 4)
	if _, err := io.ReadFull(c, frame); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(frame))
	if n > 64<<20 {
		return nil, fmt.Errorf("an answer that says it has %d bytes", n)
	}
	frame = append(frame, make([]byte, n)...)
	_, err := io.ReadFull(c, frame[4:])
	return frame, err
}

// exchange sends bytes on a connection of its own and returns the answer, or the error of a close.
func exchange(t *testing.T, addr string, req []byte) ([]byte, error) {
	t.Helper()
	c := dial(t, addr)
	defer c.Close()
	if _, err := c.Write(req); err != nil {
		return nil, err
	}
	return readFrame(c)
}
