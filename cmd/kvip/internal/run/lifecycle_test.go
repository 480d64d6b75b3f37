package run

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
)

// gnet starts the goroutines of its default worker pool when it is loaded.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }

// journal is what services did, in order.
type journal struct{ lines []string }

func (j *journal) note(line string) { j.lines = append(j.lines, line) }

// recorded is a service that notes its start and its end.
func recorded(j *journal, name string) *service {
	return &service{
		name:  name,
		start: func(context.Context) error { j.note("start " + name); return nil },
		run:   func(ctx context.Context) error { <-ctx.Done(); j.note("end " + name); return nil },
	}
}

func newLifecycle(t *testing.T, services ...*service) *lifecycle {
	return &lifecycle{log: zaptest.NewLogger(t), services: services, stopTimeout: 5 * time.Second}
}

// TestOrder: services start one after the other and stop in the reverse order, each ended before the next is stopped.
func TestOrder(t *testing.T) {
	j := &journal{}
	l := newLifecycle(t, recorded(j, "a"), recorded(j, "b"), recorded(j, "c"))
	if err := l.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.wait(ctx); err != nil {
		t.Errorf("wait: %v", err)
	}
	if err := l.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	want := []string{"start a", "start b", "start c", "end c", "end b", "end a"}
	if diff := cmp.Diff(want, j.lines); diff != "" {
		t.Error(diff)
	}
	for _, s := range l.services {
		if s.state != stateTerminated {
			t.Errorf("%s is %s", s.name, s.state)
		}
	}
}

// TestFailedStartStopsWhatRuns: when one cannot start, those before it are stopped, those after it never started, and the
// error names the one and the reason.
func TestFailedStartStopsWhatRuns(t *testing.T) {
	j := &journal{}
	bad := &service{name: "b", start: func(context.Context) error { return errors.New("no port") }}
	l := newLifecycle(t, recorded(j, "a"), bad, recorded(j, "c"))
	if err := l.start(t.Context()); err == nil || err.Error() != "b: no port" {
		t.Errorf("start: %v", err)
	}
	if diff := cmp.Diff([]string{"start a", "end a"}, j.lines); diff != "" {
		t.Error(diff)
	}
}

// TestRunThatFailsDuringStart: a start that waits for its run learns why the run has ended.
func TestRunThatFailsDuringStart(t *testing.T) {
	l := newLifecycle(t, &service{
		name:  "vip",
		start: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		run:   func(context.Context) error { return errors.New("address already in use") },
	})
	if err := l.start(t.Context()); err == nil || err.Error() != "vip: address already in use" {
		t.Errorf("start: %v", err)
	}
}

// TestUnaskedEndIsAFailure: a service that comes back by itself fails the process, without an error too: gnet's Run
// returns nil when it dies.
func TestUnaskedEndIsAFailure(t *testing.T) {
	for name, end := range map[string]struct {
		err  error
		want string
	}{
		"with a reason": {errors.New("accept: too many open files"), "vip: accept: too many open files"},
		"with nil":      {nil, "vip: ended without being asked to"},
	} {
		t.Run(name, func(t *testing.T) {
			die := make(chan struct{})
			j := &journal{}
			l := newLifecycle(t, recorded(j, "pool"), &service{name: "vip", run: func(context.Context) error { <-die; return end.err }})
			if err := l.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			close(die)
			if err := l.wait(t.Context()); err == nil || err.Error() != end.want {
				t.Errorf("wait: %v, want %s", err, end.want)
			}
			if err := l.stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			if diff := cmp.Diff([]string{"start pool", "end pool"}, j.lines); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestStopIsBounded: a service that does not end is left behind after its time, and named; the others are stopped.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		release := make(chan struct{})
		l := newLifecycle(t, recorded(j, "a"), &service{name: "stuck", run: func(context.Context) error { <-release; return nil }})
		if err := l.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := l.stop()
		if err == nil || !strings.Contains(err.Error(), "stuck: still runs after 5s") {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("stop took %s", took)
		}
		if diff := cmp.Diff([]string{"start a", "end a"}, j.lines); diff != "" {
			t.Error(diff)
		}
		close(release)
		synctest.Wait()
	})
}
