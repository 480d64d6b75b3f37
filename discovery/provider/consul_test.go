package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvip/kvip/discovery"
)

// watching runs the consul provider against f in a synctest bubble.
func watching(t *testing.T, f *fakeConsul, settings ConsulSettings, cfg ConsulConfig) (*consul, *recorder) {
	t.Helper()
	cfg.Service = "kafka"
	p, err := cfg.Build(Deps{Consul: settings, Transport: f})
	if err != nil {
		t.Fatal(err)
	}
	rec, stop := started(p)
	t.Cleanup(func() {
		if took, err := stop(); took != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v after %v", err, took)
		}
	})
	return p.(*consul), rec
}

// most returns the most queries within any window of that length.
func most(queries []query, window time.Duration) (n int) {
	for i, q := range queries {
		j := i
		for j < len(queries) && queries[j].at.Sub(q.at) < window {
			j++
		}
		n = max(n, j-i)
	}
	return n
}

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
		f.lists(append(entries, odd, ipv6)...)
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
			"e9": "duplicate", "e10": "tag", "odd1": "bad_address",
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

func TestConsulIndexThatGoesBack(t *testing.T) { // BL-12
	synctest.Test(t, func(t *testing.T) {
		f := newFakeConsul()
		f.index = 300
		f.lists(healthy("b1", "b1", 9092), healthy("b2", "b2", 9092), healthy("b3", "b3", 9092))
		_, rec := watching(t, f, ConsulSettings{}, ConsulConfig{})
		time.Sleep(time.Minute)
		// The agent is killed, and a fresh one with a low index takes its place.
		f.set(func(f *fakeConsul) {
			f.trouble = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "agent is down", 502) }
			f.index++
		})
		down := time.Now()
		time.Sleep(30 * time.Second)
		f.set(func(f *fakeConsul) { f.trouble, f.index, f.entries = nil, 3, nil })
		up := time.Now()
		time.Sleep(5 * time.Second)
		f.lists(healthy("b1", "b1", 9092), healthy("b2", "b2", 9092), healthy("b4", "b4", 9092))
		time.Sleep(3 * time.Second)
		all := rec.all()
		if got := addrs(all[len(all)-1]); got != "b1:9092 b2:9092 b4:9092" {
			t.Fatalf("3 s after the registration: %q", got)
		}
		queries := f.asked()
		retries := slices.DeleteFunc(slices.Clone(queries), func(q query) bool { return q.at.Before(down) || q.at.After(up) })
		if n := len(retries); n < 10 || n > 60 || most(retries, 10*time.Second) > 20 {
			t.Errorf("%d retries in 30 s, up to %d in 10 s; want under 2 a second", n, most(retries, 10*time.Second))
		}
		gaps := map[time.Duration]bool{}
		for i := 1; i < len(retries); i++ {
			gap := retries[i].at.Sub(retries[i-1].at)
			gaps[gap] = true
			if gap > 2*time.Second {
				t.Errorf("a retry after %v", gap)
			}
		}
		if len(gaps) < len(retries)/2 {
			t.Errorf("%d different gaps of %d: no jitter", len(gaps), len(retries))
		}
		for _, q := range retries[1:] {
			if q.index != "" {
				t.Errorf("a retry waits for the old index %s", q.index)
			}
		}
		// Then changes of other services, 200 a second.
		churn := time.Now()
		for range 30 * 200 {
			f.set(func(f *fakeConsul) { f.index++ })
			time.Sleep(5 * time.Millisecond)
		}
		busy := slices.DeleteFunc(f.asked(), func(q query) bool { return q.at.Before(churn) })
		if n := most(busy, time.Second); n >= 5 || len(busy) > 40 {
			t.Errorf("%d queries in 30 s of churn, up to %d in one second; want under 5", len(busy), n)
		}
	})
}

func TestConsulIndexRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeConsul()
		f.index = 50
		_, _ = watching(t, f, ConsulSettings{}, ConsulConfig{})
		time.Sleep(time.Second)
		f.set(func(f *fakeConsul) { f.index = 60 })
		time.Sleep(2 * time.Second)
		// A blocking read that comes back with a lower index, as after a restored snapshot.
		f.set(func(f *fakeConsul) {
			f.trouble = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Consul-Index", "7")
				w.Header().Set("X-Consul-KnownLeader", "true")
				w.Header().Set("X-Consul-LastContact", "0")
				fmt.Fprint(w, "[]")
			}
			f.index = 61
		})
		time.Sleep(3 * time.Second)
		var got []string
		for _, q := range f.asked() {
			got = append(got, q.index)
		}
		// 61 comes with the change that wakes the read; then 7: forget; 0 gives 7; wait for more than 7.
		if want := []string{"", "50", "60", "61", "", "7"}; !slices.Equal(got[:6], want) {
			t.Errorf("asked for indexes %q, want %q to begin with", got, want)
		}
		if q := f.asked()[1]; q.wait != "300000ms" || !q.url.Query().Has("stale") || q.url.Query().Has("passing") || q.url.Path != "/v1/health/service/kafka" {
			t.Errorf("asked %v", q.url)
		}
	})
}

func TestConsulInTroubleIsNotPolledBusily(t *testing.T) {
	answer := func(body string, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			fmt.Fprint(w, body)
		}
	}
	rows := map[string]http.HandlerFunc{
		"index 0":                      answer("[]", "X-Consul-Index", "0"),
		"no index":                     answer("[]"),
		"an index that is no number":   answer("[]", "X-Consul-Index", "many"),
		"500s":                         func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "No cluster leader", 500) },
		"403":                          func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Permission denied", 403) },
		"bad JSON":                     answer(`[{"Node": `, "X-Consul-Index", "9"),
		"another JSON":                 answer(`{"Node": 1}`, "X-Consul-Index", "9"),
		"null entries":                 answer(`[null, {}, {"Service": null}, {"Service": {}, "Node": null, "Checks": [null]}]`, "X-Consul-Index", "9"),
		"a redirect to another host":   func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://evil.example.com/", 302) },
		"a redirect to itself forever": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), 307) },
	}
	for name, trouble := range rows {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeConsul()
				f.trouble = trouble
				_, rec := watching(t, f, ConsulSettings{}, ConsulConfig{})
				time.Sleep(time.Minute)
				n := 0
				for _, q := range f.asked() {
					if q.url.Host == "evil.example.com" {
						t.Error("followed to another host")
					}
					n++
				}
				if strings.Contains(name, "forever") {
					n /= 4 // hops of one poll
				}
				if n < 10 || n > 120 {
					t.Errorf("%d polls in a minute, want at most 2 a second", n)
				}
				for _, u := range rec.all() {
					if len(u.Instances) > 0 {
						t.Fatalf("instances out of nothing: %+v", u)
					}
				}
			})
		})
	}
}

func TestConsulThatHangsIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeConsul()
		f.lists(healthy("a", "a", 1))
		f.trouble = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		_, rec := watching(t, f, ConsulSettings{}, ConsulConfig{})
		time.Sleep(consulGrace)
		synctest.Wait()
		if all := rec.all(); len(all) != 1 || all[0].Err == nil || !strings.Contains(all[0].Err.Error(), "no answer within") {
			t.Fatalf("updates %+v", all)
		}
		f.set(func(f *fakeConsul) { f.trouble = nil })
		time.Sleep(2 * time.Second)
		if all := rec.all(); addrs(all[len(all)-1]) != "a:1" {
			t.Fatalf("updates %+v", all)
		}
		// In a blocking read it is given the wait, and what a server may add.
		f.set(func(f *fakeConsul) {
			f.trouble = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
			f.index++
		})
		before := len(rec.all())
		time.Sleep(consulWait + consulWait/16 + consulGrace + 3*time.Second)
		if all := rec.all(); all[len(all)-1].Err == nil || len(all) > before+3 {
			t.Fatalf("%d updates more, the last %+v", len(all)-before, all[len(all)-1])
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

func TestConsulTokenIsReadAnewAndItsRefusalNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token")
		write := func(s string) {
			if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("old\n")
		f := newFakeConsul()
		f.lists(healthy("a", "a", 1))
		ok := f.trouble
		f.trouble = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Consul-Token") != "new" {
				http.Error(w, "Permission denied: \x1b[31mACL not found\x1b[0m"+strings.Repeat("!", 5000), 403)
				return
			}
			f.set(func(f *fakeConsul) { f.trouble = ok })
			f.ServeHTTP(w, r)
		}
		_, rec := watching(t, f, ConsulSettings{TokenFile: file, Datacenter: "dc7"}, ConsulConfig{})
		synctest.Wait()
		err := rec.all()[0].Err
		if err == nil || len(err.Error()) > 600 || strings.Contains(err.Error(), "\x1b") {
			t.Fatalf("error %q", err)
		}
		for _, part := range []string{"403", "service:read", `"kafka"`, file} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		write("new")
		time.Sleep(3 * time.Second)
		all := rec.all()
		if addrs(all[len(all)-1]) != "a:1" {
			t.Errorf("after the rotation: %+v", all[len(all)-1])
		}
		if q := f.asked()[0]; q.url.Query().Get("dc") != "dc7" || q.token != "old" {
			t.Errorf("asked %v with token %q", q.url, q.token)
		}
		write("")
		f.set(func(f *fakeConsul) { f.index++ })
		time.Sleep(3 * time.Second)
		if all := rec.all(); all[len(all)-1].Err == nil || !strings.Contains(all[len(all)-1].Err.Error(), "consul.token_file") {
			t.Errorf("with an empty token file: %+v", all[len(all)-1])
		}
	})
}

func TestConsulRefreshEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeConsul()
		f.lists(healthy("a", "a", 1))
		p, rec := watching(t, f, ConsulSettings{}, ConsulConfig{})
		time.Sleep(time.Minute)
		for range 100 {
			p.Refresh()
		}
		time.Sleep(100 * time.Millisecond)
		if all := rec.all(); len(all) != 2 || all[1].Err != nil {
			t.Errorf("%d updates, the last %+v; want a second answer", len(all), all[len(all)-1])
		}
		begun := time.Now()
		for range 1000 {
			p.Refresh()
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(f.asked()) - 2; n > 30 {
			t.Errorf("%d queries in %v of pestering", n, time.Since(begun))
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

func TestConsulSettingsSayWhatIsWrong(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{"", "127.0.0.1:8500", "consul.example.com:8500", "http://consul:8500", "https://[::1]:8501"} {
		if err := (ConsulSettings{Address: good}).Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for field, settings := range map[string][]ConsulSettings{
		"address":    {{Address: "consul"}, {Address: "unix:///run/consul.sock"}, {Address: "ftp://c:1"}, {Address: "0.0.0.0:8500"}, {Address: "http://"}},
		"token_file": {{TokenFile: "/nonexistent"}, {TokenFile: empty}, {TokenFile: t.TempDir()}, {TokenFile: "/dev/zero"}},
	} {
		for _, s := range settings {
			fe := (*FieldError)(nil)
			if err := s.Validate(); !errors.As(err, &fe) || fe.Field != field || fe.Fix == "" {
				t.Errorf("%+v: %v, want a fault of %s", s, err, field)
			}
		}
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
			if host, port, err := splitAddr(in.Addr()); err != nil || host != in.Host || port != in.Port || seen[in.Addr()] || in.Weight < 0 {
				t.Errorf("took %+v", in)
			}
			seen[in.Addr()] = true
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
