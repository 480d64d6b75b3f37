package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kvip/kvip/discovery"
)

// evil is one way in which a registry may be out to harm the pool that believes it.
type evil struct {
	handler http.HandlerFunc
	// body answers instead, and is made as it is read.
	body func() io.Reader
	// says is part of the error that operators are shown, "" where there is none.
	says string
	// lasts is for how long it is so; five minutes when 0.
	lasts time.Duration
}

// many is a list of n entries, each made by one.
func many(n int, one func(i int) entry) http.HandlerFunc {
	body := sync.OnceValue(func() string {
		entries := make([]entry, n)
		for i := range entries {
			entries[i] = one(i)
		}
		b, err := json.Marshal(entries)
		if err != nil {
			panic(err)
		}
		return string(b)
	})
	return func(w http.ResponseWriter, r *http.Request) { said(200, "900", body())(w, r) }
}

func said(status int, index, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if index != "" {
			w.Header().Set("X-Consul-Index", index)
			w.Header().Set("X-Consul-KnownLeader", "true")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Row 30 of the hostile peers: whatever the registry of a pool of three says, the members stay as long as their own probes
// pass, it is asked twice a second at most, nobody else is asked in its place, and memory stays bounded.
var evilConsuls = map[string]evil{
	"100 MB of JSON": {
		body: func() io.Reader {
			return io.LimitReader(&endless{of: []byte(`{"Node":{"Address":"10.0.0.1"},"Service":{"ID":"a","Port":9092}},`)}, 100<<20)
		},
		says: "longer than 32 MiB", lasts: time.Second,
	},
	"bad JSON":        {handler: said(200, "900", `[{"Node": `), says: "unexpected EOF"},
	"another JSON":    {handler: said(200, "900", `{"Node": 1}`), says: "cannot unmarshal"},
	"an empty list":   {handler: said(200, "900", "[]")},
	"null":            {handler: said(200, "900", "null")},
	"entries of null": {handler: said(200, "900", `[null, {}, {"Service": null}, {"Service": {}, "Node": null, "Checks": [null]}]`)},
	"duplicate ids": {
		handler: many(300, func(i int) entry { return healthy("b1", fmt.Sprintf("b%d", 1+i%3), 9092) }),
		lasts:   time.Minute,
	},
	"50,000 entries": {
		handler: many(50_000, func(i int) entry { return healthy(fmt.Sprint(i), fmt.Sprintf("10.1.%d.%d", i>>8, i&255), 9092) }),
		says:    "50000 entries, above the limit of 10000", lasts: 2 * time.Second,
	},
	"index 0":                   {handler: said(200, "0", "[]")},
	"no index":                  {handler: said(200, "", "[]")},
	"an index beyond all":       {handler: said(200, "18446744073709551615", "[]")},
	"an index that is no index": {handler: said(200, "18446744073709551616", "[]")},
	"an index backwards":        {handler: backwards()},
	"500s":                      {handler: said(500, "", "No cluster leader"), says: "No cluster leader"},
	"hangs":                     {handler: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, says: "no answer within", lasts: 7 * time.Minute},
	"a redirect to another host": {
		handler: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://evil.example.com/", 302) },
		says:    "refused to follow a redirect to http://evil.example.com",
	},
}

// backwards answers with a lower index each time.
func backwards() http.HandlerFunc {
	index := 1_000_000
	return func(w http.ResponseWriter, r *http.Request) {
		index--
		said(200, fmt.Sprint(index), "[]")(w, r)
	}
}

type endless struct {
	of []byte
	at int
}

func (e *endless) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		k := copy(b[n:], e.of[e.at:])
		n, e.at = n+k, (e.at+k)%len(e.of)
	}
	return n, nil
}

// streaming is a fakeConsul some of whose answers are made as they are read.
type streaming struct {
	*fakeConsul
	mu   sync.Mutex
	body func() io.Reader
}

func (s *streaming) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	body := s.body
	s.mu.Unlock()
	if body == nil {
		return s.fakeConsul.RoundTrip(r)
	}
	s.fakeConsul.mu.Lock()
	s.queries = append(s.queries, query{at: time.Now(), url: r.URL})
	s.fakeConsul.mu.Unlock()
	return &http.Response{
		StatusCode: 200, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"X-Consul-Index": {"900"}, "X-Consul-Knownleader": {"true"}},
		Body:   io.NopCloser(io.MultiReader(strings.NewReader("["), body())),
	}, nil
}

func TestAnEvilConsul(t *testing.T) {
	for name, e := range evilConsuls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &streaming{fakeConsul: newFakeConsul()}
				f.lists(healthy("b1", "b1", 9092), healthy("b2", "b2", 9092), healthy("b3", "b3", 9092))
				p, err := (&ConsulConfig{Service: "kafka"}).Build(Deps{Transport: f})
				if err != nil {
					t.Fatal(err)
				}
				w, members := membership(t, p)
				const three = "b1:9092 b2:9092 b3:9092"
				time.Sleep(10 * time.Second)
				if got := members(); got != three {
					t.Fatalf("to begin with: %s", got)
				}
				begun := time.Now()
				f.mu.Lock()
				f.body = e.body
				f.mu.Unlock()
				f.set(func(f *fakeConsul) { f.trouble = e.handler; f.index++ })
				lasts := e.lasts
				if lasts == 0 {
					lasts = 5 * time.Minute
				}
				var said []string
				for time.Since(begun) < lasts {
					time.Sleep(time.Second)
					if got := members(); got != three {
						t.Fatalf("after %v: %s", time.Since(begun), got)
					}
					if s := w.Status().Providers[0].Error; s != "" {
						said = append(said, s)
					}
				}
				if e.says == "" && len(said) > 0 || e.says != "" && !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, e.says) }) {
					t.Errorf("it says %.300q, want %q", said, e.says)
				}
				polls := slices.DeleteFunc(f.asked(), func(q query) bool { return q.at.Before(begun) })
				if n := most(polls, 10*time.Second); n > 21 {
					t.Errorf("%d polls in 10 s, want two a second at most", n)
				}
				if n := len(polls); n < 1 {
					t.Error("it is not asked any more")
				}
				for _, q := range polls {
					if q.url.Host == "evil.example.com" {
						t.Error("another host was asked")
					}
				}
				var mem runtime.MemStats
				if runtime.ReadMemStats(&mem); mem.HeapInuse > 512<<20 {
					t.Errorf("%d MiB are held", mem.HeapInuse>>20)
				}
				// It comes to its senses, and is believed again.
				f.mu.Lock()
				f.body = nil
				f.mu.Unlock()
				f.set(func(f *fakeConsul) { f.trouble = nil })
				f.lists(healthy("b1", "b1", 9092), healthy("b2", "b2", 9092), healthy("b3", "b3", 9092), healthy("b4", "b4", 9092))
				time.Sleep(consulWait + consulWait/16 + consulGrace + 3*time.Second)
				if got := members(); got != three+" b4:9092" {
					t.Errorf("once it is well again: %s", got)
				}
			})
		})
	}
}

// membership runs a pool's membership over a provider, whose members all pass their probes.
func membership(t *testing.T, p discovery.Provider) (w *discovery.Watcher, members func() string) {
	t.Helper()
	w, err := discovery.NewWatcher(discovery.WatchConfig{
		Log: zap.NewNop(), Probe: func(string) discovery.ProbeState { return discovery.Passing },
	}, []discovery.Provider{p})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var last []string
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- w.Run(ctx, func(v discovery.View) {
			mu.Lock()
			defer mu.Unlock()
			last = nil
			for _, in := range v.Members {
				last = append(last, in.Addr())
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w, func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(last, " ")
	}
}
