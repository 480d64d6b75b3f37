package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a checker whose health the test sets: took before an answer, forever while it is frozen.
type broker struct {
	mu      sync.Mutex
	fail    Reason
	took    time.Duration
	frozen  bool
	started []time.Time
	busy    bool
	closed  int
}

func (b *broker) set(f func(*broker)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

func (b *broker) Check(ctx context.Context) Verdict {
	b.mu.Lock()
	if b.busy || b.closed > 0 {
		panic("checked concurrently or after Close")
	}
	b.busy = true
	b.started = append(b.started, time.Now())
	fail, took, frozen := b.fail, b.took, b.frozen
	b.mu.Unlock()
	defer b.set(func(b *broker) { b.busy = false })
	if frozen {
		took = time.Hour
	}
	if took == 0 {
		return Verdict{Reason: fail}
	}
	select {
	case <-time.After(took):
		return Verdict{Reason: fail}
	case <-ctx.Done():
		return Verdict{Reason: "timeout"}
	}
}

func (b *broker) Close() { b.set(func(b *broker) { b.closed++ }) }

func (b *broker) starts() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.started)
}

// run starts a scheduler within a synctest bubble; events returns what it reported so far.
func run(t *testing.T, cfg Config) (s *Scheduler, events func() []Event) {
	t.Helper()
	var mu sync.Mutex
	var got []Event
	s = New(cfg, func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return s, func() []Event {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

func add(t *testing.T, s *Scheduler, name string, c Checker) {
	t.Helper()
	if err := s.Add(name, c); err != nil {
		t.Fatal(err)
	}
}

// changes are the events that changed a state.
func changes(events []Event) []Event {
	return slices.DeleteFunc(events, func(e Event) bool { return !e.Changed() })
}

func TestTheFirstVerdictDecidesAtOnce(t *testing.T) {
	for _, tt := range []struct {
		fail Reason
		want State
	}{{OK, Up}, {"refused", Down}} {
		synctest.Test(t, func(t *testing.T) {
			s, events := run(t, Config{})
			add(t, s, "b", &broker{fail: tt.fail})
			time.Sleep(10 * time.Millisecond)
			if e := events(); len(e) == 0 || e[0].State != tt.want || e[0].Was != Unknown || s.State("b") != tt.want {
				t.Errorf("after 10 ms: %+v, state %v; want %v", e, s.State("b"), tt.want)
			}
		})
	}
}

func TestAFrozenTargetIsOutWithinIntervalPlusTimeoutTimesFall(t *testing.T) {
	const interval, timeout, fall = time.Second, 500 * time.Millisecond, 3
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			s, events := run(t, Config{Interval: interval, Timeout: timeout, Fall: fall})
			b := &broker{took: time.Duration(r.IntN(400)) * time.Millisecond}
			add(t, s, "b", b)
			time.Sleep(5*time.Second + time.Duration(r.IntN(1000))*time.Millisecond)
			frozen := time.Now()
			b.set(func(b *broker) { b.frozen = true })
			time.Sleep(5 * time.Second)
			e := changes(events())
			if len(e) != 2 || e[1].State != Down {
				t.Fatalf("seed %d: changes %+v, want down", seed, e)
			}
			// A probe that had begun just before the freeze still ends well.
			if took := e[1].Verdict.At.Sub(frozen); took > interval+fall*timeout {
				t.Errorf("seed %d: out after %v, want at most %v", seed, took, interval+fall*timeout)
			}
		})
	}
}

func TestARefusingTargetIsAskedAgainAtOnceButNotThreeTimesInAMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events := run(t, Config{})
		b := &broker{}
		add(t, s, "b", b)
		time.Sleep(1500 * time.Millisecond)
		before := len(b.starts())
		b.set(func(b *broker) { b.fail = "refused" })
		time.Sleep(1500 * time.Millisecond)
		failing := b.starts()[before:]
		for i := 1; i < 3; i++ {
			if gap := failing[i].Sub(failing[i-1]); gap != 125*time.Millisecond {
				t.Errorf("failed probe %d follows after %v, want a quarter of the timeout", i, gap)
			}
		}
		if e := changes(events()); len(e) != 2 || e[1].State != Down || e[1].Verdict.At != failing[2] {
			t.Errorf("changes %+v, want down at the third failure", e)
		}
		// Once down it is asked at the ordinary interval.
		time.Sleep(10 * time.Second)
		if n := len(b.starts()) - before - 3; n < 9 || n > 13 {
			t.Errorf("%d probes in the 11 s after it went down, want about one a second", n)
		}
	})
}

func TestRiseAndFallNeedAnUnbrokenRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget("b", &broker{}, Config{}.withDefaults())
		steps := []struct {
			verdicts string // + passed, - failed
			want     State
			streak   int
		}{
			{"+", Up, 1}, {"--", Up, -2}, {"+", Up, 1}, {"--", Up, -2}, {"-", Down, -3},
			{"+", Down, 1}, {"-", Down, -1}, {"++", Up, 2}, {"---", Down, -3}, {"--++++", Up, 4},
		}
		for i, step := range steps {
			for _, v := range step.verdicts {
				reason := OK
				if v == '-' {
					reason = "closed"
				}
				target.record(Verdict{Reason: reason, At: time.Now()})
			}
			if got := target.snapshot(); got.State != step.want || got.Streak != step.streak {
				t.Fatalf("after step %d (%s): %v, streak %d; want %v, %d", i, step.verdicts, got.State, got.Streak, step.want, step.streak)
			}
		}
	})
}

func TestHistoryKeepsTheLastFailureWhenPassesHavePushedItOut(t *testing.T) {
	target := newTarget("b", &broker{}, Config{History: 3}.withDefaults())
	failure := Verdict{Reason: "wrong_cluster", Detail: "A, not B", At: time.Unix(2, 0)}
	target.record(Verdict{At: time.Unix(1, 0)})
	target.record(failure)
	for i := range 5 {
		target.record(Verdict{At: time.Unix(int64(3+i), 0)})
	}
	s := target.snapshot()
	if s.LastFailure != failure || s.Last.At != time.Unix(7, 0) || s.Probes != 7 || s.Failures != 1 {
		t.Errorf("status %+v", s)
	}
	for i, v := range s.History {
		if want := time.Unix(int64(5+i), 0); len(s.History) != 3 || v.At != want {
			t.Errorf("history %d of %d is of %v, want %v", i, len(s.History), v.At, want)
		}
	}
}

func TestIntervalsAreJitteredAndNeverLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := run(t, Config{})
		b := &broker{took: 20 * time.Millisecond}
		add(t, s, "b", b)
		time.Sleep(time.Minute)
		at := b.starts()
		distinct := map[time.Duration]bool{}
		for i := 2; i < len(at); i++ {
			gap := at[i].Sub(at[i-1])
			if gap < 900*time.Millisecond || gap > time.Second {
				t.Errorf("interval %d is %v", i, gap)
			}
			distinct[gap] = true
		}
		if len(distinct) < 20 {
			t.Errorf("%d different intervals of %d", len(distinct), len(at))
		}
	})
}

func TestManyTargetsAreStaggeredAndProbedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		begun := time.Now()
		s, events := run(t, Config{})
		for i := range n {
			add(t, s, fmt.Sprint(i), &broker{})
		}
		if got := s.Interval(); got != 10*time.Second {
			t.Fatalf("interval %v for %d targets", got, n)
		}
		time.Sleep(40 * time.Second)
		perTick := map[int64]int{}
		late := 0
		for _, e := range events() {
			at := e.Verdict.At
			perTick[at.UnixMilli()/100]++
			if at.After(time.Now().Add(-20 * time.Second)) {
				late++
			}
		}
		for tick, count := range perTick {
			most := 2 * together(n) // of 20 on average
			if first := begun.UnixMilli() / 100; tick < first+30 {
				most = 400 // a newcomer is probed within moments
			}
			if count > most {
				t.Errorf("%d probes within the %dth 100 ms", count, tick-begun.UnixMilli()/100)
			}
		}
		if late < 2*n || late > 2*n*12/10 {
			t.Errorf("%d probes in 20 s, want 200 a second", late)
		}
	})
}

func TestALargePoolsProbesBeginSomeAtATimeAndNeverLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, interval = 1000, 10 * time.Second
		s, _ := run(t, Config{Interval: interval})
		brokers := make([]*broker, n)
		for i := range brokers {
			brokers[i] = &broker{took: time.Duration(i%7) * time.Millisecond}
			add(t, s, fmt.Sprint(i), brokers[i])
		}
		time.Sleep(time.Minute)
		moments := map[time.Time]int{}
		for i, b := range brokers {
			starts := b.starts()
			for j, at := range starts[1:] {
				moments[at]++
				if gap := at.Sub(starts[j]); gap > interval || j > 0 && gap < interval*8/10 {
					t.Fatalf("target %d is probed %v after the last time, want %v at most", i, gap, interval)
				}
			}
		}
		probes := 0
		for _, many := range moments {
			probes += many
			if many > 5*together(n) {
				t.Errorf("%d probes begin at once", many)
			}
		}
		if most := 2 * probes / together(n); len(moments) > most {
			t.Errorf("%d probes begin at %d moments, want %d", probes, len(moments), most)
		}
	})
}

func TestTargetsComeAndGoLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events := run(t, Config{})
		early, slow, late := &broker{}, &broker{frozen: true}, &broker{}
		add(t, s, "early", early)
		add(t, s, "slow", slow)
		if err := s.Add("early", late); err == nil {
			t.Error("one name was added twice")
		}
		time.Sleep(100 * time.Millisecond)
		s.Remove("slow") // in the middle of a probe
		s.Remove("early")
		s.Remove("nobody")
		seen := len(events())
		add(t, s, "early", late)
		time.Sleep(10 * time.Second)
		for _, e := range events()[seen:] {
			if e.Checker != late {
				t.Errorf("a verdict of a removed target: %+v", e)
			}
		}
		if early.closed != 1 || slow.closed != 1 || late.closed != 0 {
			t.Errorf("closed %d, %d, %d times; want 1, 1, 0", early.closed, slow.closed, late.closed)
		}
		if st := s.Status(); len(st) != 1 || st[0].Name != "early" || st[0].State != Up || s.State("slow") != Unknown {
			t.Errorf("status %+v", st)
		}
	})
}

func TestRunEndsPromptlyAndClosesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Timeout: time.Hour}, func(Event) {})
		before, during, removed := &broker{frozen: true}, &broker{frozen: true}, &broker{}
		add(t, s, "before", before)
		add(t, s, "removed", removed)
		s.Remove("removed")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		add(t, s, "during", during)
		time.Sleep(time.Second)
		cancel()
		stopped := time.Now()
		<-done
		if took := time.Since(stopped); took != 0 {
			t.Errorf("Run went on for %v after its context", took)
		}
		if before.closed != 1 || during.closed != 1 || removed.closed != 1 {
			t.Errorf("closed %d, %d and %d times", before.closed, during.closed, removed.closed)
		}
		if err := s.Add("after", &broker{}); err == nil {
			t.Error("a stopped scheduler takes targets")
		}
	})
}

func TestANudgeBringsTheNextProbeForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events := run(t, Config{Interval: time.Minute})
		b := &broker{}
		add(t, s, "b", b)
		time.Sleep(10 * time.Second)
		b.set(func(b *broker) { b.fail = "refused" })
		for range 1000 {
			s.Nudge("b")
			synctest.Wait()
		}
		s.Nudge("nobody")
		time.Sleep(time.Second)
		if e := changes(events()); len(e) != 2 || e[1].State != Down || len(events()) > 6 {
			t.Errorf("%d probes, changes %+v; want down after few probes", len(events()), e)
		}
	})
}
