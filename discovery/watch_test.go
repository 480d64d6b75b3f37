package discovery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errTest = errors.New("registry is on fire")

// script is a provider whose answers the test gives; it counts how often it was asked to read again and answers then.
type script struct {
	name string
	in   chan Update

	mu       sync.Mutex
	answer   string // what it says when asked again
	asked    atomic.Int32
	askedNow chan struct{}
	stop     chan error
}

func newScript(name string) *script {
	return &script{name: name, in: make(chan Update), askedNow: make(chan struct{}, 1), stop: make(chan error)}
}

func (s *script) Name() string { return s.name }

func (s *script) Refresh() {
	s.asked.Add(1)
	poke(s.askedNow)
}

func (s *script) Run(ctx context.Context, publish func(Update)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.stop:
			return err
		case u := <-s.in:
			publish(from(s.name, u))
		case <-s.askedNow:
			s.mu.Lock()
			u := update(s.answer)
			s.mu.Unlock()
			publish(from(s.name, u))
		}
	}
}

func (s *script) says(names string) {
	s.mu.Lock()
	s.answer = names
	s.mu.Unlock()
	s.in <- update(names)
}

// running starts a watcher in a synctest bubble; stop ends it and reports what it published.
func running(t *testing.T, cfg WatchConfig, providers ...Provider) (w *Watcher, views func() []View) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	w, err := NewWatcher(cfg, providers)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []View
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- w.Run(ctx, func(v View) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, v)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return w, func() []View {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func TestWatcherMakesOneViewOfABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newScript("a"), newScript("b")
		_, views := running(t, WatchConfig{}, a, b)
		a.says("x")
		if v := views(); len(v) != 1 {
			t.Fatalf("%d views at the first answer, want 1 without delay", len(v))
		}
		time.Sleep(time.Second)
		for _, names := range []string{"x y", "x z", "x y z", "x w"} {
			a.says(names)
			b.says("q")
		}
		time.Sleep(DefaultDebounce)
		v := views()
		if len(v) != 2 || hosts(v[1].Members) != "q w x" {
			t.Fatalf("%d views, the last %q; want 2, and the latest of each provider", len(v), hosts(v[len(v)-1].Members))
		}
	})
}

func TestWatcherAsksForTheReadThatARemovalNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newScript("a")
		w, views := running(t, WatchConfig{}, a)
		a.says("x y")
		time.Sleep(time.Second)
		a.says("x")
		time.Sleep(DefaultShrinkHold - time.Second)
		if v := views(); len(v) != 1 || a.asked.Load() != 0 {
			t.Fatalf("%d views and asked %d times within the hold", len(v), a.asked.Load())
		}
		if h := w.Status().Held; len(h) != 1 || h[0].Addr != "y:9092" {
			t.Fatalf("status holds %v", h)
		}
		time.Sleep(2 * time.Second)
		v := views()
		if len(v) != 2 || hosts(v[1].Members) != "x" || v[1].Changes[0].Cause != CauseHeld {
			t.Fatalf("%d views, want y gone", len(v))
		}
		if a.asked.Load() != 1 {
			t.Errorf("asked %d times, want once", a.asked.Load())
		}
	})
}

// deaf never answers a Refresh.
type deaf struct {
	*script
	asked atomic.Int32
}

func (d *deaf) Refresh() { d.asked.Add(1) }

func TestWatcherDoesNotPesterARegistryThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deaf{script: newScript("a")}
		w, views := running(t, WatchConfig{}, d)
		d.says("x y")
		time.Sleep(time.Second)
		d.says("x")
		for range 100 {
			time.Sleep(2 * time.Second)
			w.Recheck()
			d.in <- Update{Err: errTest}
		}
		if v := views(); len(v) != 1 {
			t.Errorf("%d views, want the removal to wait for a read", len(v))
		}
		if n := d.asked.Load(); n < 10 || n > 15 {
			t.Errorf("asked %d times in the 140 s after the hold, want one each %v", n, askAgain)
		}
	})
}

func TestWatcherKeepsMembersThroughFailuresAndTellsThemOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		a := newScript("a")
		w, views := running(t, WatchConfig{Log: zap.New(core), Restore: from("a", update("r")).Instances}, a)
		if v := views(); len(v) != 1 || hosts(v[0].Members) != "r" {
			t.Fatalf("views %v, want the restored member first", v)
		}
		for range 50 {
			a.in <- Update{Err: errTest, At: time.Now()}
			time.Sleep(time.Second)
		}
		s := w.Status()
		if len(views()) != 1 || s.Providers[0].Error != errTest.Error() || !s.Providers[0].LastSuccess.IsZero() || s.Members != 1 {
			t.Fatalf("status %+v after failures", s)
		}
		u := update("r s")
		u.Skipped = []Skipped{{ID: "1", Reason: "critical"}, {ID: "2", Reason: "critical"}}
		a.in <- u
		time.Sleep(time.Second)
		s = w.Status()
		if p := s.Providers[0]; p.Error != "" || p.LastSuccess.IsZero() || p.Instances != 2 || p.Skipped["critical"] != 2 || s.Generation != 2 {
			t.Fatalf("status %+v after success", s)
		}
		if n := logs.FilterMessageSnippet("a read failed").Len(); n != 1 {
			t.Errorf("%d lines for 50 failures in a row, want 1", n)
		}
		if n := logs.FilterMessage("+ s:9092 (a): listed by a").Len(); n != 1 {
			t.Errorf("the change is not in the log: %v", logs.All())
		}
	})
}

// A registry that lists nobody any more would otherwise leave no trace in the log: no member changes.
func TestWatcherLogsWhomItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		a := newScript("a")
		running(t, WatchConfig{Log: zap.New(core)}, a)
		says := func(names string) {
			a.in <- update(names)
			time.Sleep(time.Second)
		}
		lines := func(snippet string, want int) {
			t.Helper()
			if n := logs.FilterMessageSnippet(snippet).Len(); n != want {
				t.Errorf("%d lines %q, want %d", n, snippet, want)
			}
		}
		says("r s")
		lines("no registry lists", 0)
		for range 3 {
			says("")
		}
		lines("no registry lists r:9092, it stays for now: no provider lists any broker", 1)
		lines("no registry lists s:9092", 1)
		says("r s")
		lines("is listed", 2)
		says("r")
		lines("no registry lists s:9092, it stays for now: waits for its hold and one more read", 1)

		// One that the last run has left is told of once the registry has been read.
		restored := newScript("b")
		running(t, WatchConfig{Log: zap.New(core), Restore: from("b", update("t")).Instances}, restored)
		time.Sleep(time.Second)
		lines("t:9092, it stays", 0)
		restored.in <- update("")
		time.Sleep(time.Second)
		lines("no registry lists t:9092, it stays for now: no provider lists any broker", 1)
	})
}

func TestWatcherRestartsAProviderThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newScript("a")
		w, views := running(t, WatchConfig{}, a)
		a.stop <- nil
		synctest.Wait()
		if e := w.Status().Providers[0].Error; e == "" {
			t.Error("a provider that stopped is not said to have failed")
		}
		time.Sleep(restart)
		a.says("x")
		if v := views(); len(v) != 1 {
			t.Errorf("%d views after the restart", len(v))
		}
	})
}

func TestWatcherAppliesOrdersAndRechecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		probe := probes{}
		a, b := newScript("a"), newScript("b")
		w, views := running(t, WatchConfig{Probe: func(addr string) ProbeState {
			mu.Lock()
			defer mu.Unlock()
			return probe.of(addr)
		}}, a, overseer{b})
		a.says("x y z")
		time.Sleep(time.Second)
		if n := len(views()); n != 0 {
			t.Errorf("%d views before an operator's orders are known", n)
		}
		b.in <- Update{Orders: &Orders{}}
		time.Sleep(time.Second)
		b.in <- Update{Orders: &Orders{Removed: []string{"z:9092"}}}
		a.says("x z")
		time.Sleep(time.Second)
		mu.Lock()
		probe["y"] = Failing
		mu.Unlock()
		w.Recheck()
		v := views()
		if len(v) != 3 || hosts(v[1].Members) != "x y" || hosts(v[2].Members) != "x" {
			t.Fatalf("views %+v, want z and then y gone", v)
		}
	})
}

// A pool whose orders cannot be read is decided at once, one whose orders do not come after a moment.
func TestWatcherDoesNotWaitForOrdersForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, failing := range []bool{true, false} {
			a, b := newScript("a"), newScript("b")
			_, views := running(t, WatchConfig{}, a, overseer{b})
			a.says("x")
			time.Sleep(patience / 2)
			if n := len(views()); n != 0 {
				t.Errorf("failing %v: %d views too early", failing, n)
			}
			if failing {
				b.in <- Update{Err: errTest}
			} else {
				time.Sleep(patience / 2)
			}
			time.Sleep(DefaultDebounce)
			if n := len(views()); n != 1 {
				t.Errorf("failing %v: %d views, want 1", failing, n)
			}
		}
	})
}

// overseer makes a script's updates orders.
type overseer struct{ *script }

func (overseer) Oversees() {}

func TestNewWatcherRefusesWhatItCannotTellApart(t *testing.T) {
	if _, err := NewWatcher(WatchConfig{}, nil); err == nil {
		t.Error("no provider is accepted")
	}
	if _, err := NewWatcher(WatchConfig{}, []Provider{newScript("a"), newScript("a")}); err == nil {
		t.Error("two providers of one name are accepted")
	}
}
