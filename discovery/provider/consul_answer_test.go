package provider

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvip/kvip/discovery"
)

// check makes a check for an entry.
func check(id, status string) map[string]any { return map[string]any{"CheckID": id, "Status": status} }

// bl11 is the table of BL-11, as the health endpoint shows it.
func bl11() []entry {
	with := func(e entry, change func(entry)) entry { change(e); return e }
	return []entry{
		with(healthy("e1", "", 19092), func(e entry) { e.Node["Address"] = "127.0.0.11" }),
		healthy("e2", "127.0.0.12", 19092),
		with(healthy("e3", "127.0.0.13", 19092), func(e entry) { e.Checks[0] = check("service:e3", "critical") }),
		{
			Node: map[string]any{"Node": "n4", "Address": "127.0.0.14"}, Service: map[string]any{"ID": "e4", "Port": 19092},
			Checks: []map[string]any{check("service:e4", "passing"), check("serfHealth", "critical")},
		},
		with(healthy("e5", "127.0.0.15", 19092), func(e entry) {
			e.Checks[0] = check("service:e5", "warning")
			e.Service["Weights"] = map[string]int{"Passing": 10, "Warning": 3}
			e.Service["Meta"] = map[string]string{"rack": "r5", "node_id": "5"}
		}),
		with(healthy("e6", "127.0.0.16", 19092), func(e entry) { e.Checks[0] = check("_service_maintenance:e6", "critical") }),
		{
			Node: map[string]any{"Node": "n7", "Address": "127.0.0.17"}, Service: map[string]any{"ID": "e7", "Port": 19092},
			Checks: []map[string]any{check("a", "passing"), check("b", "critical")},
		},
		healthy("e8", "127.0.0.18", 0),
		healthy("e9", "127.0.0.12", 19092),
		with(healthy("e10", "127.0.0.20", 19092), func(e entry) { e.Service["Tags"] = []string{"other"} }),
	}
}

func TestConsulEntriesThatAreEasyToMisread(t *testing.T) { // BL-11
	synctest.Test(t, func(t *testing.T) {
		entries := bl11()
		for i := range entries[:9] {
			entries[i].Service["Tags"] = []string{"kafka", "plain"}
		}
		// More than the case has: they are no reason to fall.
		odd := healthy("odd1", "0.0.0.0", 9092)
		odd.Service["Tags"] = []string{"plain"}
		ipv6 := healthy("six", "2001:DB8::0:1", 9092)
		ipv6.Service["Tags"], ipv6.Service["Meta"], ipv6.Service["Weights"] = []string{"plain"}, map[string]string{"node_id": "five"}, nil
		f := newFakeConsul()
		node := healthy("odd2", "a", 9092)
		node.Service["Tags"], node.Checks[0] = []string{"plain"}, check("_node_maintenance", "critical")
		f.lists(append(entries, odd, node, ipv6)...)
		_, rec := watching(t, f, ConsulSettings{}, ConsulConfig{Tags: []string{"plain"}})
		synctest.Wait()
		u := rec.all()[0]
		want := []discovery.Instance{
			{ID: "n-e1/e1", Host: "127.0.0.11", Port: 19092, NodeID: -1, Weight: 1, Source: "consul"},
			{ID: "n-e2/e2", Host: "127.0.0.12", Port: 19092, NodeID: -1, Weight: 1, Source: "consul"},
			{ID: "n-e5/e5", Host: "127.0.0.15", Port: 19092, NodeID: 5, Rack: "r5", Weight: 3, Warning: true, Source: "consul"},
			{ID: "n-six/six", Host: "2001:db8::1", Port: 9092, NodeID: -1, Weight: 1, Source: "consul"},
		}
		if diff := cmp.Diff(want, u.Instances); diff != "" {
			t.Errorf("instances differ (-want +got):\n%s", diff)
		}
		reasons := map[string]string{}
		for _, s := range u.Skipped {
			reasons[s.ID[strings.Index(s.ID, "/")+1:]] = s.Reason
		}
		wantReasons := map[string]string{
			"e3": "critical", "e4": "critical", "e6": "maintenance", "e7": "critical", "e8": "no_port",
			"e9": "duplicate", "e10": "tag", "odd1": "bad_address", "odd2": "maintenance",
		}
		if diff := cmp.Diff(wantReasons, reasons); diff != "" {
			t.Errorf("skipped differ (-want +got):\n%s", diff)
		}
		// A flip of a check is followed within 2 s.
		entries[2].Checks[0]["Status"] = "passing"
		f.lists(entries...)
		time.Sleep(2 * time.Second)
		if all := rec.all(); !strings.Contains(addrs(all[len(all)-1]), "127.0.0.13:19092") {
			t.Errorf("2 s after the flip: %s", addrs(all[len(all)-1]))
		}
	})
}

func TestConsulStaleAndFilteredAnswersAreMarked(t *testing.T) {
	rows := map[string]struct {
		header http.Header
		stale  bool
	}{
		"leader known":            {http.Header{"X-Consul-Lastcontact": {"4900"}}, false},
		"no leader":               {http.Header{"X-Consul-Knownleader": {"false"}}, true},
		"out of touch":            {http.Header{"X-Consul-Lastcontact": {"5100"}}, true},
		"partly hidden by an ACL": {http.Header{"X-Consul-Results-Filtered-By-Acls": {"true"}}, true},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeConsul()
				f.header = row.header
				f.lists(healthy("a", "a", 1))
				_, rec := watching(t, f, ConsulSettings{}, ConsulConfig{})
				time.Sleep(time.Second)
				if u := rec.all()[0]; u.Stale != row.stale || addrs(u) != "a:1" {
					t.Errorf("update %+v, want stale %v", u, row.stale)
				}
				f.set(func(f *fakeConsul) { f.header = nil })
				time.Sleep(15 * time.Second)
				if all := rec.all(); row.stale && all[len(all)-1].Stale {
					t.Error("a true answer is not fetched soon after a stale one")
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFakeConsul()
		f.header = http.Header{"X-Consul-Results-Filtered-By-Acls": {"true"}}
		_, rec := watching(t, f, ConsulSettings{}, ConsulConfig{})
		synctest.Wait()
		if u := rec.all()[0]; u.Err == nil || !strings.Contains(u.Err.Error(), "service:read") {
			t.Errorf("all hidden by an ACL: %+v", u)
		}
	})
}

func TestConsulAnswersAreBounded(t *testing.T) { // over a real server, for what the transport does
	var sent atomic.Int64
	big := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Consul-Index", "9")
		chunk := []byte(strings.Repeat(`{"Node":{"Address":"10.0.0.1"},"Service":{"ID":"a","Port":9092}},`, 1000))
		_, _ = io.WriteString(w, "[")
		for sent.Load() < 100<<20 {
			n, err := w.Write(chunk)
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	}
	many := func(w http.ResponseWriter, _ *http.Request) {
		one := `{"Service":{"ID":"a","Address":"a","Port":9092}}`
		fmt.Fprint(w, "[", strings.Repeat(one+",", 50_000), one, "]")
	}
	for name, row := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{"100 MB": {big, "longer than 32 MiB"}, "50,000 entries": {many, "50001 entries, above the limit"}} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(row.handler)
			defer server.Close()
			p, err := (&ConsulConfig{Service: "kafka"}).Build(Deps{Consul: ConsulSettings{Address: server.URL}})
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			rec, stop := started(p)
			defer func() { _, _ = stop() }()
			if err := rec.await("an error", func(u discovery.Update) bool { return u.Err != nil && strings.Contains(u.Err.Error(), row.want) }); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if got := after.Sys - before.Sys; got > 400<<20 {
				t.Errorf("the process grew by %d MiB", got>>20)
			}
		})
	}
	if s := sent.Load(); s > 48<<20 {
		t.Errorf("read on to %d MiB", s>>20)
	}
}

// FuzzConsulAnswer feeds JSON of any shape: it must not panic, and what is taken can be dialled.
func FuzzConsulAnswer(f *testing.F) {
	good, err := json.Marshal(bl11())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good))
	f.Add(`[null,{},{"Service":{"Port":1,"Weights":{"Passing":-1}},"Checks":[null,{"Definition":{"Interval":"x"}}]}]`)
	f.Add(`{"a":1}`)
	f.Add(`[{"Service":{"Address":"a","Port":1,"Weights":{"Passing":9000000000000000000,"Warning":9000000000000000000}},"Checks":[{"Status":"warning"}]},` +
		`{"Service":{"Address":"b","Port":1,"Weights":{"Passing":9000000000000000000}}}]`)
	var body string
	p, err := (&ConsulConfig{Service: "kafka"}).Build(Deps{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		rec := httptest.NewRecorder()
		rec.Body.WriteString(body)
		return rec.Result(), nil
	})})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, said string) {
		body = said
		c := p.(*consul)
		entries, _, err := c.client.Health().Service("kafka", "", false, nil)
		if err != nil {
			return
		}
		u := c.take(entries)
		seen := map[string]bool{}
		for _, in := range u.Instances {
			if host, port, err := splitAddr(in.Addr()); err != nil || host != in.Host || port != in.Port || seen[in.Addr()] || in.Weight < 0 || in.Weight > maxWeight {
				t.Errorf("took %+v", in)
			}
			seen[in.Addr()] = true
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
