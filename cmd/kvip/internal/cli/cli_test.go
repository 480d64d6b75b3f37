package cli_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/zap"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/cmd/kvip/internal/admin"
	"github.com/kvip/kvip/cmd/kvip/internal/cli"
	"github.com/kvip/kvip/protocol/front"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kvip": func() { os.Exit(cli.Main(os.Args[1:])) }})
}

// TestScripts runs the command as a user does: testdata/*.txtar. $HEALTHY, $SICK and $ODD are admin listeners of a healthy
// kvip, of one that is not, and of something else; $BROKER is a broker of cluster "probed", $NOBODY an address
// where nothing listens, $TAKEN one where another process does.
func TestScripts(t *testing.T) {
	healthy, sick := running(t, ""), running(t, "pool orders: no snapshot yet")
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "{}") }))
	t.Cleanup(odd.Close)
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("probed"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HEALTHY", healthy)
			e.Setenv("SICK", sick)
			e.Setenv("ODD", odd.URL)
			e.Setenv("BROKER", broker.ListenAddrs()[0])
			e.Setenv("NOBODY", gone.Addr().String())
			e.Setenv("TAKEN", taken.Addr().String())
			return nil
		},
	})
}

// fixed is a kvip in one state.
type fixed struct{ reason string }

func (f fixed) Conditions() []admin.Condition { return nil }

func (f fixed) Explain(client netip.AddrPort) []admin.Explanation {
	e := backends.Explanation{
		Pool: "orders", Client: client.Addr().String(),
		Head:    backends.Choice{Policy: "round-robin", Broker: "10.0.0.1:9092", NodeID: 1, Why: "its turn"},
		Forward: backends.Choice{Policy: "ring", Broker: "10.0.0.1:9092", NodeID: 1, Rack: "r1", Why: "next on the ring", Sticky: true},
		Skipped: []backends.Skipped{{Broker: "10.0.0.2:9092", NodeID: 2, State: "down", Why: "its probe fails: connect: refused"}},
	}
	return []admin.Explanation{{Explanation: e, LookupForward: []string{"relay"}, LastCloses: []admin.Close{{
		VIP: "orders", Meaning: "it spoke TLS to a plain port",
		Closed: front.Closed{At: time.Now().Add(-3 * time.Minute), Peer: netip.AddrPortFrom(client.Addr(), 40000), Reason: "tls", Age: "2ms"},
	}}}}
}

func (f fixed) Status() admin.Status {
	return admin.Status{
		Healthy: f.reason == "", Reason: f.reason, PID: 4711, Version: "v1.2.3", Started: time.Now().Add(-time.Minute), UptimeSeconds: 60,
		VIPs: []admin.VIP{{Status: front.Status{Name: "orders", Listen: "0.0.0.0:9092", Cap: 1000}, Pool: "orders", Lookup: "snapshot", Ready: f.reason == "", Reason: f.reason}},
		Pools: []backends.Status{{
			Pool: "orders", Policy: "round-robin", Ready: f.reason == "", Reason: f.reason, ClusterID: "cluster-a",
			Members: []backends.MemberStatus{{Broker: "10.0.0.1:9092", NodeID: 1, Weight: 1, State: "serving", SharePercent: 100, Forwardable: true, Listed: true, LastProbe: "ok"}},
		}},
	}
}

// running serves the admin side of a kvip and returns its host:port.
func running(t *testing.T, reason string) string {
	t.Helper()
	s := admin.New(admin.Config{Listen: "127.0.0.1:0"}, fixed{reason}, prometheus.NewRegistry(), zap.NewNop())
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() {
		if err := s.Serve(); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() { _ = s.Shutdown(context.Background()) })
	return s.Addr()
}
