package events

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t *testing.T, text string) *File {
	t.Helper()
	f, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func byName(all []Done) map[string]Done {
	m := map[string]Done{}
	for _, d := range all {
		m[d.Event.Name] = d
	}
	return m
}

func TestEventsHappenAtTheirTimesAndSayWhatBecameOfThem(t *testing.T) {
	var called string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called = r.Method + " " + r.URL.Path + " " + r.Header.Get("X-Who")
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	began := time.Now()
	got := byName(parse(t, fmt.Sprintf(`
events:
  - {at: 100ms, name: late, run: echo done}
  - {at: 0s, name: fails, run: "echo why >&2; exit 3"}
  - {at: 0s, name: hangs, run: sleep 60, within: 150ms}
  - {at: 0s, name: calls, http: {method: POST, url: "%[1]s/pool", header: {X-Who: load}, status: 418}}
  - {at: 0s, name: refused, http: {url: "%[1]s"}}
  - {at: 1h, name: never, run: "true"}
`, server.URL)).Run(deadline(t, 400*time.Millisecond), began))
	if d := got["late"]; d.Err != nil || d.At < 100*time.Millisecond || !strings.Contains(d.Detail, "echo done: done") {
		t.Errorf("late: %+v", d)
	}
	if d := got["fails"]; d.Err == nil || !strings.Contains(d.Detail, "why") {
		t.Errorf("fails: %+v", d)
	}
	if d := got["hangs"]; d.Err == nil || !strings.Contains(d.Err.Error(), "not done within 150ms") || d.Took > 5*time.Second {
		t.Errorf("hangs: %+v", d)
	}
	if d := got["calls"]; d.Err != nil {
		t.Errorf("calls: %+v", d)
	}
	if d := got["refused"]; d.Err == nil || !strings.Contains(d.Err.Error(), "418") {
		t.Errorf("refused: %+v", d)
	}
	if _, ok := got["never"]; ok || len(got) != 5 {
		t.Errorf("%d events, want 5: the run ended before the last one", len(got))
	}
	if called != "POST /pool load" && called != "GET / " {
		t.Errorf("called %q", called)
	}
}

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestWhatIsStartedCanBeFrozenAndKilledAndIsGoneAtTheEnd follows one process through /proc.
func TestWhatIsStartedCanBeFrozenAndKilledAndIsGoneAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	pidFile := func(name string) string { return filepath.Join(dir, name) }
	f := parse(t, fmt.Sprintf(`
events:
  - {at: 0s, name: one, start: "echo $$ > %[1]s; exec sleep 60"}
  - {at: 0s, name: two, start: "echo $$ > %[2]s; exec sleep 60"}
  - {at: 200ms, name: freeze, stop: {pid_file: %[1]s, for: 300ms}}
  - {at: 350ms, name: look, run: "cut -d' ' -f3 /proc/$(cat %[1]s)/stat"}
  - {at: 700ms, name: look again, run: "cut -d' ' -f3 /proc/$(cat %[1]s)/stat"}
  - {at: 800ms, name: kill, kill: {started: one}}
  - {at: 0s, name: too early, kill: {started: three}}
`, pidFile("one"), pidFile("two")))
	got := byName(f.Run(t.Context(), time.Now()))
	for name, want := range map[string]string{"look": "T", "look again": "S", "freeze": "for 300ms", "kill": "killed to process -"} {
		if d := got[name]; d.Err != nil || !strings.Contains(d.Detail, want) {
			t.Errorf("%s: %q %v, want %q", name, d.Detail, d.Err, want)
		}
	}
	if d := got["too early"]; d.Err == nil {
		t.Error("killed what nobody had started")
	}
	for _, name := range []string{"one", "two"} {
		raw, err := os.ReadFile(pidFile(name))
		if err != nil {
			t.Fatal(err)
		}
		pid, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("process %s (%d) is still there: %v", name, pid, err)
		}
	}
}

func TestBadEventsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"events: []":                                       "no event",
		"events: [{at: 1s}]":                               "event 1: 0 actions",
		"events: [{at: 1s, runn: x}]":                      "runn",
		"events: [{at: soon, run: x}]":                     "soon",
		"events: [{at: 1s, start: x}]":                     "start needs a name",
		"events: [{at: -1s, run: x}]":                      "neither may be negative",
		"events: [{at: 1s, kill: {}}]":                     "exactly one of pid",
		"events: [{kill: {pid: 1}}]":                       "exactly one of pid",
		"events: [{at: 1s, http: {}}]":                     "needs a url",
		"events: [{run: x, start: y}]":                     "2 actions",
		"events: [{kill: {pid: 5, for: 1s, pid_file: x}}]": "exactly one",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}
