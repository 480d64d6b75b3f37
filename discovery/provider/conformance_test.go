package provider

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kvip/kvip/discovery"
)

// ZooKeeper's client takes a second to give up a server that does not answer; Run does not wait for it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/kvip/kvip/discovery/provider.closeZK.func1"))
}

// fixture is one row of the conformance suite: how to have a registry that lists what the test says.
type fixture struct {
	// yaml is a section that uses every field.
	yaml string
	// bad are sections and what the error must name, besides the unknown key and the empty section that all refuse.
	bad map[string]string
	// start starts a registry that lists a:1 and b:2 (names from the config or set by the fixture).
	start func(t *testing.T) registry
}

// registry is one in the hands of a test. The functions are nil where the registry cannot do that.
type registry struct {
	config Config
	deps   Deps
	lists  func(addrs ...string)
	fail   func()
	heal   func()
	hang   func()
	// knowsIDs says that the registry itself knows node ids.
	knowsIDs bool
}

// fixtures has a row for every provider of the registry.
var fixtures = map[string]fixture{
	"static": {
		yaml: `{type: static, brokers: ["a:1", {address: "B:2", rack: r1, weight: 0, node_id: 5}]}`,
		bad: map[string]string{
			`{type: static, brokers: ["a:1", "b"]}`:                                         `brokers[1]: "b" is not host:port`,
			`{type: static, brokers: ["a:0"]}`:                                              `brokers[0]: "a:0" has no port`,
			`{type: static, brokers: ["0.0.0.0:9092"]}`:                                     `brokers[0]: "0.0.0.0:9092": 0.0.0.0 is no address to connect to`,
			`{type: static, brokers: ["a b:9092"]}`:                                         `brokers[0]: "a b:9092": "a b" is no host name`,
			`{type: static, brokers: ["a:1", "A:1"]}`:                                       `brokers[1]: a:1 is brokers[0] already`,
			`{type: static, brokers: ["[::1]:1", "[0:0::1]:1"]}`:                            `brokers[1]: [::1]:1 is brokers[0] already`,
			`{type: static, brokers: [{address: "a:1", weight: -1}]}`:                       `brokers[0].weight: -1 is no weight`,
			`{type: static, brokers: [{address: "a:1", node_id: -1}]}`:                      `brokers[0].node_id: -1 is no node id`,
			`{type: static, brokers: [{address: "a:1", wieght: 2}]}`:                        `wieght`,
			`{type: static, brokers: [{rack: r1}, {address: "b:1", weight: 70000}, "x:y"]}`: `brokers[1].weight`,
		},
		start: func(t *testing.T) registry {
			return registry{config: &StaticConfig{Brokers: []StaticBroker{{Address: "a:1"}, {Address: "b:2"}}}}
		},
	},
	"consul": {
		yaml: `{type: consul, service: kafka-orders, tags: [prod, plain]}`,
		bad: map[string]string{
			`{type: consul, service: "a/b"}`:             `service: "a/b" is no service name`,
			`{type: consul, service: kafka, tags: [""]}`: `tags[0]: is empty`,
			`{type: consul, service: kafka, passing: 1}`: `passing`,
		},
		start: func(t *testing.T) registry {
			f := newFakeConsul()
			server := httptest.NewServer(f)
			t.Cleanup(server.Close)
			trouble := func(h http.HandlerFunc) func() {
				return func() { f.set(func(f *fakeConsul) { f.trouble = h; f.index++ }) }
			}
			r := registry{
				config: &ConsulConfig{Service: "kafka"}, deps: Deps{Consul: ConsulSettings{Address: server.URL}},
				lists: func(addrs ...string) {
					var es []entry
					for _, a := range addrs {
						host, port, _ := splitAddr(a)
						es = append(es, healthy(a, host, port))
					}
					f.lists(es...)
				},
				fail: trouble(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "No cluster leader", 500) }),
				heal: trouble(nil),
				hang: trouble(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
			}
			r.lists("a:1", "b:2")
			return r
		},
	},
}

func init() {
	fixtures["file"] = fixture{
		yaml: `{type: file, path: /etc/kvip/brokers.yaml}`,
		bad: map[string]string{
			`{type: file, path: /}`: `path: / is a directory`,
		},
		start: func(t *testing.T) registry {
			path := brokersFile(t)
			replace(t, path, listText("a:1", "b:2"))
			return registry{
				config: &FileConfig{Path: path},
				lists:  func(addrs ...string) { replace(t, path, listText(addrs...)) },
				fail:   func() { replace(t, path, "- a:1\n- b") },
				heal:   func() { replace(t, path, `{"brokers": ["a:1", "b:2"]}`) },
			}
		},
	}
	fixtures["kafka"] = fixture{
		yaml: `{type: kafka, seeds: ["kafka-1.example.com:9092", "[::1]:9092"], interval: 30s}`,
		bad: map[string]string{
			`{type: kafka, seeds: [a]}`:                    `seeds[0]: "a" is not host:port`,
			`{type: kafka, seeds: ["a:1"], interval: 1ms}`: `interval: 1ms is out of range`,
			`{type: kafka, seeds: []}`:                     `seeds: lists no seed`,
		},
		start: func(t *testing.T) registry {
			f := startFakeKafka(t)
			r := f.registry(&KafkaConfig{Seeds: []string{f.Addr().String()}, Interval: minPoll})
			r.knowsIDs = true
			return r
		},
	}
	fixtures["zookeeper"] = fixture{
		yaml: `{type: zookeeper, servers: ["zk-1:2181", "zk-2:2181"], chroot: /kafka, listener: CLIENT, session: 10s}`,
		bad: map[string]string{
			`{type: zookeeper, servers: [zk-1]}`:                    `servers[0]: "zk-1" is not host:port`,
			`{type: zookeeper, servers: ["zk:1"], chroot: kafka}`:   `chroot: "kafka" is no path of a node`,
			`{type: zookeeper, servers: ["zk:1"], chroot: /kafka/}`: `chroot: "/kafka/" is no path of a node`,
			`{type: zookeeper, servers: ["zk:1"], session: 1ms}`:    `session: 1ms is out of range`,
		},
		start: func(t *testing.T) registry {
			f := startFakeZookeeper(t, "/kafka")
			r := f.registry(&ZookeeperConfig{Servers: []string{f.Addr().String()}, Chroot: "/kafka", Session: minSession})
			r.knowsIDs = true
			return r
		},
	}
	fixtures["dns"] = fixture{
		yaml: `{type: dns, name: kafka.example.com, port: 9093, record: a, server: "127.0.0.1:8600", interval: 30s}`,
		bad: map[string]string{
			`{type: dns, name: "a b"}`:              `name: "a b" is no name to ask for`,
			`{type: dns, name: 10.0.0.1}`:           `name: "10.0.0.1" is no name to ask for`,
			`{type: dns, name: k, port: 0}`:         `port: 0 is no port`,
			`{type: dns, name: k, record: mx}`:      `record: "mx" is no kind of record`,
			`{type: dns, name: k, server: "::"}`:    `server: "::" is not host:port`,
			`{type: dns, name: k, interval: 1000h}`: `interval: 1000h0m0s is out of range`,
		},
		start: func(t *testing.T) registry {
			f := startFakeDNS(t, "a:1", "b:2")
			state := func(s string) func() { return func() { f.set(func() { f.state = s }) } }
			return registry{
				config: &DNSConfig{Name: "_kafka._tcp.example.com", Port: defaultPort, Server: f.LocalAddr().String(), Interval: minPoll},
				lists:  func(addrs ...string) { f.set(func() { f.addrs = addrs }) },
				fail:   state("none"), heal: state(""), hang: state("hang"),
			}
		},
	}
}

// decode reads a section as the configuration's loader does.
func decode(e Entry, section string) (Config, error) {
	cfg := e.NewConfig()
	if err := yaml.UnmarshalWithOptions([]byte(section), cfg, yaml.Strict()); err != nil {
		return nil, err
	}
	return cfg, cfg.Validate()
}

func addrs(u discovery.Update) string {
	var out []string
	for _, in := range u.Instances {
		out = append(out, in.Addr())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestEveryProviderConforms(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(Registry)) {
		f, ok := fixtures[name]
		if !ok {
			t.Errorf("provider %q has no row in the conformance suite", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Run("config", func(t *testing.T) { conformConfig(t, Registry[name], f) })
			t.Run("watch", func(t *testing.T) { conformWatch(t, name, f.start(t)) })
			t.Run("cancel", func(t *testing.T) { conformCancel(t, f.start(t)) })
		})
	}
}

func conformConfig(t *testing.T, e Entry, f fixture) {
	if e.Doc == "" {
		t.Error("no doc line")
	}
	cfg, err := decode(e, f.yaml)
	if err != nil {
		t.Fatalf("the full example is refused: %v", err)
	}
	if p, err := cfg.Build(Deps{Name: "second"}); err != nil || p.Name() != "second" {
		t.Errorf("Build: %v, name %v", err, p)
	}
	bad := maps.Clone(f.bad)
	bad["{}"] = ""
	bad[strings.TrimSuffix(f.yaml, "}")+", no_such_key: 1}"] = "no_such_key"
	for section, want := range bad {
		switch _, err := decode(e, section); {
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%s: error %v, want %q in it", section, err, want)
		case section == "{}":
			if fe := (*FieldError)(nil); !errors.As(err, &fe) || fe.Field == "" || fe.Fix == "" {
				t.Errorf("an empty section gives %v, want a FieldError with a fix", err)
			}
			if _, err := e.NewConfig().Build(Deps{}); err == nil {
				t.Error("Build takes an invalid config")
			}
		}
	}
}

func conformWatch(t *testing.T, name string, r registry) {
	p, err := r.config.Build(r.deps)
	if err != nil {
		t.Fatal(err)
	}
	if p.Name() != name {
		t.Errorf("named %q, want its type", p.Name())
	}
	rec, stop := started(p)
	await := func(rec *recorder, what string, pleases func(discovery.Update) bool) {
		t.Helper()
		if err := rec.await(what, pleases); err != nil {
			t.Fatal(err)
		}
	}
	lists := func(want string) func(discovery.Update) bool {
		return func(u discovery.Update) bool { return u.Err == nil && addrs(u) == want }
	}
	await(rec, "the first list", lists("a:1 b:2"))
	for _, u := range rec.all() {
		if u.Provider != name || u.At.IsZero() || u.Stale {
			t.Errorf("update %+v", u)
		}
		for _, in := range u.Instances {
			if in.Source != name || in.ID == "" || (in.NodeID != -1) != r.knowsIDs || in.Weight != 1 {
				t.Errorf("instance %+v", in)
			}
		}
	}
	if r.lists != nil {
		r.lists("a:1", "b:2", "c:3")
		await(rec, "appear", lists("a:1 b:2 c:3"))
		r.lists("a:1", "b:2")
		await(rec, "vanish", lists("a:1 b:2"))
	}
	if r.fail != nil {
		r.fail()
		await(rec, "an error", func(u discovery.Update) bool { return u.Err != nil && len(u.Instances) == 0 })
		r.heal()
		await(rec, "well again", lists("a:1 b:2"))
	}
	again, ok := p.(discovery.Refresher)
	if !ok {
		t.Fatal("it cannot be asked to read again")
	}
	time.Sleep(20 * time.Millisecond) // into the read that waits for a change
	before := len(rec.all())
	again.Refresh()
	await(rec, "read again", func(u discovery.Update) bool { return len(rec.all()) > before && addrs(u) == "a:1 b:2" })
	if _, err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
	// A restart, with the same or another object, begins with the whole list.
	rec, stop = started(p)
	await(rec, "the list after a restart", lists("a:1 b:2"))
	_, _ = stop()
}

func conformCancel(t *testing.T, r registry) {
	p, err := r.config.Build(r.deps)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]func(){"idle": func() {}, "failing": r.fail, "hanging": r.hang}
	for _, state := range []string{"idle", "failing", "hanging"} {
		enter := states[state]
		if enter == nil {
			continue
		}
		enter()
		var took time.Duration
		for range 3 { // the machine may be busy with something else
			_, stop := started(p)
			time.Sleep(50 * time.Millisecond)
			if took, err = stop(); took <= 50*time.Millisecond {
				break
			}
		}
		if took > 50*time.Millisecond || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Run returned %v, %v after its context ended", state, err, took)
		}
	}
}

func TestStaticTakesBothFormsOfABroker(t *testing.T) {
	cfg, err := decode(Registry["static"], fixtures["static"].yaml)
	if err != nil {
		t.Fatal(err)
	}
	p, err := cfg.Build(Deps{Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	rec, stop := started(p)
	defer func() { _, _ = stop() }()
	if err := rec.await("an update", func(u discovery.Update) bool { return true }); err != nil {
		t.Fatal(err)
	}
	u := rec.all()[0]
	want := []discovery.Instance{
		{ID: "a:1", Host: "a", Port: 1, NodeID: -1, Weight: 1, Source: "static"},
		{ID: "B:2", Host: "b", Port: 2, NodeID: 5, Weight: 0, Rack: "r1", Source: "static"},
	}
	if !slices.Equal(u.Instances, want) || !u.Explicit {
		t.Errorf("got %+v, explicit %v", u.Instances, u.Explicit)
	}
}
