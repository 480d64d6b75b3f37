package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeAgent keeps services with one check each. Like the original it goes on with a request whose client has gone.
type fakeAgent struct {
	mu       sync.Mutex
	services map[string]string // what their checks say, by id
	trouble  string            // answered instead, with the status 500
	slow     time.Duration     // to register
	asked    []string
	at       []time.Time
}

func (a *fakeAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked, a.at = append(a.asked, r.URL.Path), append(a.at, time.Now())
	slow := a.slow
	a.mu.Unlock()
	what, id, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/agent/"), "/service:")
	var body struct{ ID, Status string }
	if r.Body != nil {
		_ = json.NewDecoder(r.Body).Decode(&body)
	}
	if what == "service/register" {
		time.Sleep(slow)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch _, known := a.services[id]; {
	case a.trouble != "":
		http.Error(w, a.trouble, http.StatusInternalServerError)
	case what == "service/register":
		a.services[body.ID] = "critical"
	case what == "check/update" && known:
		a.services[id] = body.Status
	case strings.HasPrefix(what, "service/deregister/") && a.services[what[len("service/deregister/"):]] != "":
		delete(a.services, what[len("service/deregister/"):])
	default:
		http.Error(w, "Unknown service or check", http.StatusNotFound)
	}
}

// RoundTrip implements http.RoundTripper.
func (a *fakeAgent) RoundTrip(r *http.Request) (*http.Response, error) {
	rec, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(done)
		a.ServeHTTP(rec, r)
	}()
	select {
	case <-done:
		return rec.Result(), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (a *fakeAgent) has() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for id, status := range a.services {
		out = append(out, id+" "+status)
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

func (a *fakeAgent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// registered runs the registration of one VIP in a bubble.
func registered(t *testing.T, a *fakeAgent, ready func() (bool, string)) *SelfRegistration {
	t.Helper()
	s, err := NewSelfRegistration(RegisterConfig{Service: "kvip", TTL: 9 * time.Second}, Deps{Transport: a},
		[]SelfEntry{{Name: "orders", Pool: "orders", Listen: func() string { return "127.0.0.1:9092" }, Ready: ready}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

const passing, critical = "[kvip-127-0-0-1-9092 passing]", "[kvip-127-0-0-1-9092 critical]"

// The entry says whether a client could bootstrap, at once when that changes, and comes back when the agent has lost it.
func TestTheOwnEntrySaysWhetherAClientCouldBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAgent{services: map[string]string{}}
		var mu sync.Mutex
		ready := false
		s := registered(t, a, func() (bool, string) { mu.Lock(); defer mu.Unlock(); return ready, "no snapshot" })
		is := func(what string, d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := a.has(); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		is("before the first snapshot", time.Second, critical)
		mu.Lock()
		ready = true
		mu.Unlock()
		is("with one", selfLook, passing)
		a.set(func() { clear(a.services) })
		is("after the agent has lost it", 4*time.Second, passing)
		s.Leave(t.Context())
		is("once it has left", 0, "[]")
		is("and for good", time.Minute, "[]")
	})
}

// An agent that refuses, from the start on too, is asked once a second at most, and the entry is there soon after.
func TestAnAgentThatRefusesIsNotPestered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAgent{services: map[string]string{}, trouble: "Permission denied"}
		s := registered(t, a, func() (bool, string) { return true, "" })
		time.Sleep(time.Minute)
		if got := s.Faults(); len(got) != 1 || !strings.Contains(got[0], "kvip-127-0-0-1-9092 as it should for 1m0s now") || !strings.Contains(got[0], "Permission denied") {
			t.Errorf("the faults that status shows: %q", got)
		}
		a.mu.Lock()
		if n := len(a.asked); n < 15 || n > 61 {
			t.Errorf("asked %d times in a minute", n)
		}
		a.trouble = ""
		a.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := a.has(); got != passing {
			t.Errorf("once it is well: %s", got)
		}
		if got := s.Faults(); len(got) != 0 {
			t.Errorf("faults once it is well: %q", got)
		}
	})
}

// A kvip that is told to leave while the agent takes its time to register it is not listed afterwards.
func TestLeavingDuringTheRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAgent{services: map[string]string{}, slow: 500 * time.Millisecond}
		s := registered(t, a, func() (bool, string) { return true, "" })
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		s.Leave(t.Context())
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %v to leave", took)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := a.has(); got != "[]" {
			t.Errorf("it is still listed: %s", got)
		}
	})
	// One that does not answer at all holds nobody up.
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAgent{services: map[string]string{}, slow: time.Hour}
		s := registered(t, a, func() (bool, string) { return true, "" })
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		s.Leave(t.Context())
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %v to leave an agent that hangs", took)
		}
		a.set(func() { a.slow = 0 })
		time.Sleep(2 * time.Hour)
	})
}
