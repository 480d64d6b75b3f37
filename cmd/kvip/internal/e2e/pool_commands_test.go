//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
)

func ownConsul(t *testing.T) *lab.Consul {
	t.Helper()
	c, err := lab.StartConsul(within(t, 5*time.Minute), lab.ConsulConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// members are the brokers in the pool, by state and weight.
func (g *gateway) members(t *testing.T) map[string]string {
	t.Helper()
	var s struct {
		Pools []struct {
			Members []struct {
				Broker, State string
				Weight        int
			}
		}
	}
	g.statusz(t, &s)
	out := map[string]string{}
	for _, m := range s.Pools[0].Members {
		out[m.Broker] = fmt.Sprintf("%s %d", m.State, m.Weight)
	}
	return out
}

// pool runs kvip pool with the gateway's own configuration.
func (g *gateway) pool(t *testing.T, action string, args ...string) string {
	t.Helper()
	cmd := exec.Command(kvipBinary, append([]string{"pool", action, "-c", filepath.Join(g.dir, "kvip.yaml"), "orders"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args[1:], err, out)
	}
	return string(out)
}

// again starts a gateway that has ended with the same configuration, and waits until it is ready.
func (g *gateway) again(t *testing.T) {
	t.Helper()
	var err error
	g.Process, err = lab.StartProcess(lab.ProcessConfig{Name: "kvip", Path: kvipBinary, Args: []string{"serve", "-c", filepath.Join(g.dir, "kvip.yaml")}, LogPath: filepath.Join(g.dir, "kvip-2.log")})
	if err != nil {
		t.Fatal(err)
	}
	g.waitReady(t)
}

func TestAPoolIsChangedByCommandsUnderBootstraps(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	k, err := lab.StartKafka(ctx, lab.KafkaConfig{Nodes: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, topic := range topics[:2] {
		if err := k.CreateTopic(ctx, topic, 3, 3); err != nil {
			t.Fatal(err)
		}
	}
	consul := ownConsul(t)
	if err := register(ctx, consul, k.Nodes()[:3]...); err != nil {
		t.Fatal(err)
	}
	g := start(t, consul, settings{})
	b := func(i int) string { return k.Node(i).Addr() }
	eventually(t, 10*time.Second, "three brokers serve", func() bool {
		m := g.members(t)
		return m[b(0)] == "serving 1" && m[b(1)] == "serving 1" && m[b(2)] == "serving 1" && len(m) == 3
	})
	// What would be done, and how it is, for programs; neither changes anything.
	var would struct {
		Pool, Action, Broker, Before, After string
		DryRun                              bool `json:"dry_run"`
		Changed                             bool
	}
	if err := json.Unmarshal([]byte(g.pool(t, "drain", b(0), "--dry-run", "--json")), &would); err != nil ||
		!would.DryRun || !would.Changed || would.Action != "drain" || would.Broker != b(0) || would.After != "registered by agent, drained" {
		t.Errorf("a dry run says %+v: %v", would, err)
	}
	var list struct {
		Pool, Service string
		Members       []struct {
			Broker, Registered, Health string
			Weight                     int
			Drained                    bool
		}
		Audit []struct{ By string }
	}
	if err := json.Unmarshal([]byte(g.pool(t, "list", "--audit", "--json")), &list); err != nil || list.Service != service || len(list.Members) != 3 || len(list.Audit) != 0 {
		t.Errorf("the list: %+v, %v", list, err)
	}
	for _, m := range list.Members {
		if m.Registered != "agent" || m.Health != "passing" || m.Weight != 1 || m.Drained {
			t.Errorf("listed: %+v", m)
		}
	}
	flawless(t, loaded(t, g, k, 20*time.Second, func(time.Time) {
		soon := func(what string, ok func(m map[string]string) bool) {
			t.Helper()
			begun := time.Now()
			eventually(t, 3*time.Second, what, func() bool { return ok(g.members(t)) })
			t.Logf("after %v: %s", time.Since(begun).Round(time.Millisecond), what)
		}
		for range 2 {
			g.pool(t, "add", b(3), "--weight", "2")
			soon("the fourth serves", func(m map[string]string) bool { return m[b(3)] == "serving 2" && len(m) == 4 })
			g.pool(t, "drain", b(0))
			soon("the first drains", func(m map[string]string) bool { return m[b(0)] == "draining 0" })
			g.pool(t, "weight", b(1), "5")
			soon("the second weighs 5", func(m map[string]string) bool { return m[b(1)] == "serving 5" })
			g.pool(t, "undrain", b(0))
			soon("the first serves", func(m map[string]string) bool { return m[b(0)] == "serving 1" })
			g.pool(t, "weight", b(1), "default")
			g.pool(t, "remove", b(3))
			soon("the fourth is out", func(m map[string]string) bool { return m[b(3)] == "" && len(m) == 3 })
		}
		// A broker that its own agent registers stays out as well, until it is added again.
		g.pool(t, "remove", b(2))
		soon("the third is out", func(m map[string]string) bool { return m[b(2)] == "" && len(m) == 2 })
		g.pool(t, "add", b(2))
		soon("and back", func(m map[string]string) bool { return m[b(2)] == "serving 1" })
	}))
	if out := g.pool(t, "list", "--audit"); strings.Count(out, "\n") != 15 || !strings.Contains(out, "weight default") {
		t.Errorf("audit trail:\n%s", out)
	}
	out, err := exec.Command(kvipBinary, "explain", "10.1.2.3", "--admin", g.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "client 10.1.2.3 at pool orders") {
		t.Errorf("explain: %v\n%s", err, out)
	}
	// A start without Consul has the members and the orders of the last run, and says that Consul does not answer.
	g.pool(t, "drain", b(0))
	eventually(t, 3*time.Second, "the first drains", func() bool { return g.members(t)[b(0)] == "draining 0" })
	if err := consul.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(g.Pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-g.Exited()
	g.again(t)
	eventually(t, 5*time.Second, "the three of the last run, one of them drained", func() bool {
		m := g.members(t)
		return m[b(0)] == "draining 0" && m[b(1)] == "serving 1" && m[b(2)] == "serving 1" && len(m) == 3
	})
	eventually(t, 5*time.Second, "Consul's silence is said", func() bool {
		var s struct {
			Pools []struct {
				Discovery []struct {
					Provider  string
					LastError string `json:"last_error"`
				}
				Held []struct{ Why string }
			}
		}
		g.statusz(t, &s)
		p := s.Pools[0]
		return len(p.Discovery) == 2 && p.Discovery[0].LastError != "" && p.Discovery[1].LastError != "" && len(p.Held) == 3 &&
			p.Held[0].Why == "no registry has been read since the start"
	})
	// The cluster's own list needs no registry.
	own := start(t, nil, settings{discovery: fmt.Sprintf("{type: kafka, seeds: [%q]}", b(0))})
	eventually(t, 10*time.Second, "all four brokers serve", func() bool {
		m := own.members(t)
		return len(m) == 4 && !slices.ContainsFunc(k.Bootstrap(), func(a string) bool { return m[a] != "serving 1" })
	})
}

func TestConsulEntriesThatAreEasyToMisreadThroughTheGateway(t *testing.T) { // BL-11
	k, _ := sharedLab(t)
	consul := ownConsul(t)
	ctx := within(t, time.Minute)
	type object = map[string]any
	put := func(id, node, host string, port int, tag string, checks ...object) {
		t.Helper()
		for _, c := range checks {
			c["Node"] = "n-" + id
		}
		if _, err := consul.Do(ctx, http.MethodPut, "/v1/catalog/register", object{
			"Node": "n-" + id, "Address": node, "Checks": checks,
			"Service": object{"ID": id, "Service": service, "Address": host, "Port": port, "Tags": []string{tag}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(id, of, status string) object { return object{"CheckID": id, "ServiceID": of, "Status": status} }
	put("e1", "127.0.0.11", "", 19092, "plain", check("service:e1", "e1", "passing"))
	put("e2", "127.0.0.99", "127.0.0.12", 19092, "plain")
	put("e3", "127.0.0.13", "", 19092, "plain", check("service:e3", "e3", "critical"))
	put("e4", "127.0.0.14", "", 19092, "plain", check("service:e4", "e4", "passing"), check("serfHealth", "", "critical"))
	put("e5", "127.0.0.15", "", 19092, "plain", check("service:e5", "e5", "warning"))
	put("e6", "127.0.0.16", "", 19092, "plain", check("_service_maintenance:e6", "e6", "critical"))
	put("e7", "127.0.0.17", "", 19092, "plain", check("a", "e7", "passing"), check("b", "e7", "critical"))
	put("e8", "127.0.0.18", "", 0, "plain")
	put("e9", "127.0.0.98", "127.0.0.12", 19092, "plain")
	put("e10", "127.0.0.20", "", 19092, "other")
	real := k.Node(1).Service(service)
	put("real", real.Address, real.Address, real.Port, "plain")
	g := start(t, consul, settings{discovery: "{type: consul, service: " + service + ", tags: [plain]}"})
	want := func(hosts ...string) func() bool {
		return func() bool {
			m := g.members(t)
			return len(m) == len(hosts)+1 && m[k.Node(1).Addr()] != "" && !slices.ContainsFunc(hosts, func(h string) bool { return m[h+":19092"] == "" })
		}
	}
	eventually(t, 5*time.Second, "e1, e2 once, e5 and the real one", want("127.0.0.11", "127.0.0.12", "127.0.0.15"))
	put("e3", "127.0.0.13", "", 19092, "plain", check("service:e3", "e3", "passing"))
	eventually(t, 2*time.Second, "a check that flips is followed", want("127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.15"))
	resp, err := lab.Exchange(ctx, g.addr, &kmsg.MetadataRequest{Version: 12})
	if err != nil || len(resp.(*kmsg.MetadataResponse).Brokers) != 3 {
		t.Errorf("brokers outside the registry are gone from Metadata: %v", err)
	}
}

// BL-12 and BL-13: the agent is killed, comes back empty and with a low index; the gateway is killed, stopped and told to
// leave.
func TestAnEmptyRestartOfConsulAndTheGatewaysOwnEntry(t *testing.T) {
	k, _ := sharedLab(t)
	consul := ownConsul(t)
	ctx := within(t, 2*time.Minute)
	entry := func(id string, n *lab.Node) {
		t.Helper()
		s := n.Service(service)
		s.ID = id
		if err := consul.Register(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range k.Nodes() {
		entry(fmt.Sprint("b", i), n)
	}
	const ttl = 3 * time.Second
	g := start(t, consul, settings{vip: "register: {service: kvip, ttl: 3s}\ndrain: {grace: 2s, timeout: 1s}"})
	own := func() (ids []string, passing bool) {
		var found []struct {
			Service struct{ ID string }
			Checks  []struct{ Status string }
		}
		out, err := consul.Do(ctx, http.MethodGet, "/v1/health/service/kvip", nil)
		if err != nil || json.Unmarshal(out, &found) != nil {
			return nil, false
		}
		passing = true
		for _, f := range found {
			ids = append(ids, f.Service.ID)
			for _, c := range f.Checks {
				passing = passing && c.Status == "passing"
			}
		}
		return ids, passing && len(ids) > 0
	}
	listed := func(what string, d time.Duration) string {
		t.Helper()
		var id string
		eventually(t, d, what, func() bool {
			ids, passing := own()
			if passing && len(ids) == 1 {
				id = ids[0]
			}
			return id != ""
		})
		return id
	}
	id := listed("kvip lists itself", 5*time.Second)
	flawless(t, loaded(t, g, k, 15*time.Second, func(time.Time) {
		if err := consul.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := consul.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		if got := listed("kvip lists itself again within a TTL", ttl+time.Second); got != id {
			t.Errorf("as %s, before as %s", got, id)
		}
		if n := len(g.members(t)); n != 3 {
			t.Errorf("%d members while the catalogue is empty", n)
		}
		entry("b0", k.Node(0))
		entry("b1", k.Node(1))
		if err := consul.Register(ctx, lab.Service{Name: service, ID: "b4", Address: "127.0.0.99", Port: 19092}); err != nil {
			t.Fatal(err)
		}
		eventually(t, 3*time.Second, "the new one is a member, and nobody has gone", func() bool {
			m := g.members(t)
			return m["127.0.0.99:19092"] != "" && len(m) == 4
		})
	}))

	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ttl+3*time.Second, "a gateway that is stopped is critical", func() bool { ids, passing := own(); return len(ids) == 1 && !passing })
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	listed("and passes again unaided", ttl)

	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	g.again(t)
	if got := listed("one entry after the crash", 5*time.Second); got != id {
		t.Errorf("as %s, before as %s", got, id)
	}

	if err := syscall.Kill(g.Pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Second, "a gateway that leaves is listed no more", func() bool { ids, _ := own(); return len(ids) == 0 })
	if _, err := lab.Exchange(ctx, g.addr, &kmsg.MetadataRequest{Version: 12}); err != nil {
		t.Errorf("it stopped serving before that was known: %v", err)
	}
	<-g.Exited()
	if ids, _ := own(); len(ids) != 0 {
		t.Errorf("entries %q are left", ids)
	}
}
