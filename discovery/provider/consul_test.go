package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
		"429, 500 and 403 in turns":    inTurns(429, 500, 403),
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

// Where every read comes over a new connection, as behind a balancer that keeps none, an agent that was restarted between
// two reads and counts from the start is noticed, and still asked twice a second at most.
func TestConsulBehindNewConnections(t *testing.T) {
	f := newFakeConsul()
	f.index = 300
	f.lists(healthy("a", "a", 1))
	server := httptest.NewUnstartedServer(f)
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	t.Cleanup(server.Close) // after the provider, whose read it would wait for
	rec := run(t, &ConsulConfig{Service: "kafka"}, Deps{Consul: ConsulSettings{Address: server.URL}})
	await(t, rec, "the first list", is("a:1"))
	begun := time.Now()
	time.Sleep(2 * time.Second)
	f.set(func(f *fakeConsul) { f.index, f.entries = 3, []entry{healthy("b", "b", 2)} })
	await(t, rec, "what the agent that is new has", is("b:2"))
	if n, most := len(f.asked()), 3+2*int(time.Since(begun).Seconds()+1); n > most {
		t.Errorf("asked %d times, at most %d would be right", n, most)
	}
}

// inTurns answers with each status after the other.
func inTurns(statuses ...int) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not now", statuses[int(n.Add(1))%len(statuses)])
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
