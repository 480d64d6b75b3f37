package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(m)
}

func startKafkaT(t *testing.T, start func(context.Context, KafkaConfig) (*Kafka, error), cfg KafkaConfig) *Kafka {
	t.Helper()
	began := time.Now()
	k, err := start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes of Kafka %s ready after %v", len(k.Nodes()), k.cfg.Version, time.Since(began).Round(10*time.Millisecond))
	t.Cleanup(func() { closeT(t, k, k.dir.path, k.Nodes()) })
	return k
}

// closeT closes k and checks that nothing of it is left.
func closeT(t *testing.T, k *Kafka, dir string, nodes []*Node) {
	t.Helper()
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	for _, n := range nodes {
		if err := syscall.Kill(-n.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s, process group %d: %v after Close", n.Name(), n.Pid(), err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v after Close", dir, err)
	}
}

func brokersSeenBy(t *testing.T, addr string) map[int32]kmsg.MetadataResponseBroker {
	t.Helper()
	m, err := metadata(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int32]kmsg.MetadataResponseBroker{}
	for _, b := range m.Brokers {
		seen[b.NodeID] = b
	}
	return seen
}

func TestKafkaClusterSurvivesAKilledNodeAndTakesAFourth(t *testing.T) {
	ctx := t.Context()
	k := startKafkaT(t, StartKafka, KafkaConfig{
		Racks: []string{"a", "b", "c"}, AdvertisedHosts: []string{"127.0.0.11", "localhost", "::1"},
	})
	seen := brokersSeenBy(t, k.Node(1).Addr())
	for i, want := range []struct{ host, rack string }{{"127.0.0.11", "a"}, {"localhost", "b"}, {"::1", "c"}} {
		n := k.Node(i)
		got := seen[n.ID]
		if got.Host != want.host || got.Rack == nil || *got.Rack != want.rack || k.Bootstrap()[i] != hostPort(got.Host, int(got.Port)) {
			t.Errorf("node %d: listed as %+v, want host %s and rack %s and the address of Bootstrap %s", i, got, want.host, want.rack, k.Bootstrap()[i])
		}
	}
	if err := k.CreateTopic(ctx, "orders", 6, 3); err != nil {
		t.Fatal(err)
	}
	if err := k.CreateTopic(ctx, "orders", 6, 3); err == nil || !strings.Contains(err.Error(), "TOPIC_ALREADY_EXISTS") {
		t.Errorf("second creation of a topic: %v", err)
	}
	if err := k.Node(0).Kill(); err != nil {
		t.Fatal(err)
	}
	if k.Node(0).Running() {
		t.Error("a killed node counts as running")
	}
	began := time.Now()
	fourth, err := k.AddNode(ctx, "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("fourth node ready after %v", time.Since(began).Round(10*time.Millisecond))
	began = time.Now()
	if err := k.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed node off the list %v later", time.Since(began).Round(10*time.Millisecond))
	if seen := brokersSeenBy(t, fourth.Addr()); len(seen) != 3 || seen[4].Rack == nil || *seen[4].Rack != "d" {
		t.Errorf("after a kill and an addition the fourth node lists %v", seen)
	}
	began = time.Now()
	if err := k.Node(0).Restart(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("restarted node ready after %v", time.Since(began).Round(10*time.Millisecond))
	if err := k.Node(1).Pause(); err != nil {
		t.Fatal(err)
	}
	if _, err := metadata(ctx, k.Node(1).Addr()); err == nil {
		t.Error("a paused node answers")
	}
	if err := k.Node(1).Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := metadata(ctx, k.Node(1).Addr()); err != nil {
		t.Error(err)
	}
	if err := k.Node(2).Stop(ctx); err != nil {
		t.Error(err)
	}
}

func TestEveryKafkaVersionServes(t *testing.T) {
	for version, build := range kafkaBuilds {
		if build.zookeeper || version == DefaultKafka {
			continue // the other tests' own
		}
		t.Run(version, func(t *testing.T) {
			k := startKafkaT(t, StartKafka, KafkaConfig{Version: version, Nodes: 1, Production: true})
			req := kmsg.NewPtrDescribeClusterRequest() // its answer's header is flexible
			req.SetVersion(0)
			resp, err := Exchange(t.Context(), k.Node(0).Addr(), req)
			if err != nil {
				t.Fatal(err)
			}
			if got := resp.(*kmsg.DescribeClusterResponse); got.ClusterID != k.ClusterID() || len(got.Brokers) != 1 {
				t.Errorf("DescribeCluster: %+v, want one broker of cluster %s", got, k.ClusterID())
			}
		})
	}
}

func TestVersionsMixUnderOneMetadataVersion(t *testing.T) {
	k := startKafkaT(t, StartKafka, KafkaConfig{Version: "4.3.1", Versions: []string{"3.9.1", "3.9.1"}, MetadataVersion: "3.9"})
	var highest []int16 // Metadata version by node
	for _, n := range k.Nodes() {
		req := kmsg.NewPtrApiVersionsRequest()
		req.SetVersion(3)
		req.ClientSoftwareName, req.ClientSoftwareVersion = "kvip-lab", "1"
		resp, err := Exchange(t.Context(), n.Addr(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
			if kmsg.Key(key.ApiKey) == kmsg.Metadata {
				highest = append(highest, key.MaxVersion)
			}
		}
	}
	if want := []int16{12, 12, 13}; !slices.Equal(highest, want) {
		t.Errorf("highest Metadata version by node: %v, want %v", highest, want)
	}
}

func TestClientsMayBeToldAnyNameAndAskedForCredentials(t *testing.T) {
	const jaas = `org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";`
	k := startKafkaT(t, StartKafka, KafkaConfig{
		Nodes: 1, AdvertisedHosts: []string{"broker.invalid"}, LogLevel: "INFO",
		ExtraProps: map[string]string{
			"listener.security.protocol.map":              "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
			"sasl.enabled.mechanisms":                     "PLAIN",
			"listener.name.client.plain.sasl.jaas.config": jaas,
		},
		FormatArgs: []string{"--add-scram", "SCRAM-SHA-256=[name=bob,password=secret]"},
	})
	n := k.Node(0)
	if !strings.HasPrefix(n.Addr(), "broker.invalid:") || n.Service("s").Address != "broker.invalid" {
		t.Errorf("address %s, service %+v", n.Addr(), n.Service("s"))
	}
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.SetVersion(1)
	req.Mechanism = "PLAIN"
	resp, err := Exchange(t.Context(), n.listen, req)
	if err != nil || resp.(*kmsg.SASLHandshakeResponse).ErrorCode != 0 {
		t.Errorf("SaslHandshake: %+v, %v", resp, err)
	}
	if _, err := metadata(t.Context(), n.listen); err == nil {
		t.Error("Metadata was answered without credentials")
	}
	describe := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
	resp, err = Exchange(t.Context(), n.internal, describe)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.(*kmsg.DescribeUserSCRAMCredentialsResponse).Results; len(got) != 1 || got[0].User != "bob" {
		t.Errorf("users: %+v", got)
	}
}

func TestKafkaOnZooKeeperTakesABrokerBack(t *testing.T) {
	ctx := t.Context()
	k := startKafkaT(t, StartKafkaZK, KafkaConfig{})
	if dump, err := k.zk.command(ctx, "dump"); err != nil || !strings.Contains(dump, "/brokers/ids/3") || k.ZK() != k.zk.addr {
		t.Errorf("ZooKeeper at %q: %v\n%s", k.ZK(), err, dump)
	}
	if err := k.CreateTopic(ctx, "orders", 3, 3); err != nil {
		t.Fatal(err)
	}
	if err := k.Node(2).Kill(); err != nil {
		t.Fatal(err)
	}
	if err := k.Node(2).Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := k.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // others may start labs meanwhile
	_, err := StartKafka(t.Context(), KafkaConfig{Nodes: 1, ExtraProps: map[string]string{"num.io.threads": "none"}})
	if err == nil || !strings.Contains(err.Error(), "num.io.threads") {
		t.Errorf("the error does not show what Kafka said: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), runPrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, cfg := range []KafkaConfig{{Version: "9.9.9"}, {Nodes: 1, Racks: []string{"a", "b"}}, {Version: "1.1.1"}, {Nodes: -1}} {
		if k, err := StartKafka(t.Context(), cfg); err == nil {
			t.Errorf("started %+v", cfg)
			_ = k.Close()
		}
	}
}

func TestConsulRegistersChangesHealthAndForgets(t *testing.T) {
	ctx := t.Context()
	began := time.Now()
	c, err := StartConsul(ctx, ConsulConfig{
		HCL:   `acl { enabled = true default_policy = "deny" tokens { initial_management = "root" } }`,
		Token: "root",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("Consul ready after %v", time.Since(began).Round(10*time.Millisecond))
	dir, pid := c.dir.path, c.Pid()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			t.Errorf("something is left of Consul, pid %d, in %s", pid, dir)
		}
	})
	s := Service{Name: "kafka-orders", ID: "broker-1", Address: "127.0.0.1", Port: 9092, Tags: []string{"a"},
		Meta: map[string]string{"rack": "r1"}, Weights: &ServiceWeights{Passing: 10, Warning: 1}}
	if err := c.Register(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := c.SetHealth(ctx, s.ID, "warning"); err != nil {
		t.Fatal(err)
	}
	// The agent brings its changes to the catalog by itself.
	eventually(t, func() error {
		body, err := c.Do(ctx, http.MethodGet, "/v1/health/service/kafka-orders", nil)
		if err != nil {
			return err
		}
		type check struct{ ServiceID, Status string }
		warns := func(c check) bool { return c.ServiceID == s.ID && c.Status == "warning" }
		var entries []struct {
			Service Service
			Checks  []check
		}
		if err := json.Unmarshal(body, &entries); err != nil {
			return err
		}
		if len(entries) != 1 || entries[0].Service.Port != 9092 || entries[0].Service.Meta["rack"] != "r1" ||
			entries[0].Service.Weights.Passing != 10 || !slices.ContainsFunc(entries[0].Checks, warns) {
			return fmt.Errorf("%s", body)
		}
		return nil
	})
	gone := func() error {
		body, err := c.Do(ctx, http.MethodGet, "/v1/health/service/kafka-orders", nil)
		if err == nil && strings.TrimSpace(string(body)) != "[]" {
			err = fmt.Errorf("still there: %s", body)
		}
		return err
	}
	if err := c.Deregister(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, gone)
	if err := c.Register(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := gone(); err != nil {
		t.Error(err)
	}
	c.cfg.Token = "wrong"
	if err := c.Register(ctx, s); err == nil {
		t.Error("registered with a wrong token")
	}
}

// eventually calls f until it returns nil, for 10 s. The last word is f's after that time, for a machine may stand still
// for longer between two calls.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		last := f()
		if last == nil {
			return
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			if last = f(); last != nil {
				t.Fatal(last)
			}
			return
		}
	}
}

func TestReservedPortsAreFreeAndNeverTheSame(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		port, release, err := ReservePort(loopback)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if seen[port] {
			t.Fatalf("port %d was reserved twice", port)
		}
		seen[port] = true
	}
	for port := range seen {
		l, err := net.Listen("tcp", hostPort(loopback, port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		break
	}
	if _, _, err := ReservePort("192.0.2.1"); err == nil {
		t.Error("reserved a port on an address that is not this machine's")
	}
}
