package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvip/kvip/discovery"
)

// fakeConsul answers health queries as Consul does, blocking ones included, and as Consul in trouble does.
type fakeConsul struct {
	mu      sync.Mutex
	index   uint64
	entries []entry
	kv      map[string]string
	changed chan struct{} // closed and replaced at each change
	header  http.Header   // on top of the usual ones
	// trouble answers instead, for as long as it is set.
	trouble http.HandlerFunc
	queries []query
}

// query is what was asked, and when.
type query struct {
	at    time.Time
	index string
	wait  string
	url   *url.URL
	token string
}

// entry is one element of /v1/health/service/:service, as far as it matters.
type entry struct {
	Node    map[string]any
	Service map[string]any
	Checks  []map[string]any
}

func newFakeConsul() *fakeConsul {
	return &fakeConsul{index: 10, changed: make(chan struct{})}
}

// healthy makes a passing entry for host:port.
func healthy(id, host string, port int) entry {
	return entry{
		Node:    map[string]any{"Node": "n-" + id, "Address": "10.0.0.99"},
		Service: map[string]any{"ID": id, "Service": "kafka", "Address": host, "Port": port, "Weights": map[string]int{"Passing": 1, "Warning": 1}},
		Checks:  []map[string]any{{"CheckID": "serfHealth", "Status": "passing"}},
	}
}

func (f *fakeConsul) set(change func(*fakeConsul)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
	close(f.changed)
	f.changed = make(chan struct{})
}

// lists replaces the entries, as a registration would.
func (f *fakeConsul) lists(entries ...entry) {
	f.set(func(f *fakeConsul) { f.entries = entries; f.index++ })
}

func (f *fakeConsul) asked() []query {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]query(nil), f.queries...)
}

// ServeHTTP implements http.Handler.
func (f *fakeConsul) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f.mu.Lock()
	f.queries = append(f.queries, query{time.Now(), q.Get("index"), q.Get("wait"), r.URL, r.Header.Get("X-Consul-Token")})
	trouble := f.trouble
	f.mu.Unlock()
	if trouble != nil {
		trouble(w, r)
		return
	}
	after, _ := strconv.ParseUint(q.Get("index"), 10, 64)
	wait, _ := time.ParseDuration(q.Get("wait"))
	for timeout := time.After(max(wait, time.Millisecond)); ; {
		f.mu.Lock()
		index, changed := f.index, f.changed
		f.mu.Unlock()
		// As the original: it answers once its index is above the caller's, so a caller ahead of it waits.
		if after == 0 || index > after {
			break
		}
		select {
		case <-changed:
			continue
		case <-timeout:
		case <-r.Context().Done():
			return
		}
		break
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h := w.Header()
	h.Set("X-Consul-Index", strconv.FormatUint(f.index, 10))
	h.Set("X-Consul-KnownLeader", "true")
	h.Set("X-Consul-LastContact", "0")
	h.Set("X-Consul-Query-Backend", "blocking-query")
	if after > 0 { // as seen on 1.14
		h.Set("X-Consul-KnownLeader", "false")
		h.Set("X-Consul-Query-Backend", "streaming")
	}
	for k, v := range f.header {
		h[k] = v
	}
	if strings.HasPrefix(r.URL.Path, "/v1/kv/") {
		f.serveKV(w, r)
		return
	}
	entries := f.entries
	if entries == nil {
		entries = []entry{}
	}
	_ = json.NewEncoder(w).Encode(entries)
}

func (f *fakeConsul) serveKV(w http.ResponseWriter, r *http.Request) {
	type pair struct {
		Key   string
		Value []byte
	}
	var found []pair
	for key, value := range f.kv {
		if strings.HasPrefix(key, strings.TrimPrefix(r.URL.Path, "/v1/kv/")) {
			found = append(found, pair{key, []byte(value)})
		}
	}
	if len(found) == 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(found)
}

// RoundTrip lets f be reached without a network, which fake time needs.
func (f *fakeConsul) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.ServeHTTP(rec, r)
	}()
	<-done
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return rec.Result(), nil
}

// recorder gathers updates.
type recorder struct {
	mu      sync.Mutex
	updates []discovery.Update
}

func (r *recorder) publish(u discovery.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates = append(r.updates, u)
}

func (r *recorder) all() []discovery.Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]discovery.Update(nil), r.updates...)
}

// await polls real time until the last update pleases, for twenty seconds at most.
func (r *recorder) await(what string, pleases func(discovery.Update) bool) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if all := r.all(); len(all) > 0 && pleases(all[len(all)-1]) {
			return nil
		}
	}
	return fmt.Errorf("never %s: %+v", what, r.all())
}

// started runs a provider; stop ends it and says how long that took.
func started(p discovery.Provider) (rec *recorder, stop func() (time.Duration, error)) {
	rec = &recorder{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, rec.publish) }()
	return rec, func() (time.Duration, error) {
		begun := time.Now()
		cancel()
		err := <-done
		return time.Since(begun), err
	}
}
