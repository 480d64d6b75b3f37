package healthcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Config is how a Scheduler probes; zero values are the defaults.
type Config struct {
	// Interval is from one probe's start to the next one's; default 1 s. It grows with the number of targets so that
	// no more than MaxRate probes start in a second.
	Interval time.Duration
	// Timeout bounds one probe; default 500 ms.
	Timeout time.Duration
	// Rise passes in a row bring a target up (default 2), Fall failures in a row bring it down (default 3). The first
	// verdict of a new target decides at once.
	Rise, Fall int
	// MaxRate is the most probes a second over all targets; default 200.
	MaxRate float64
	// History is how many verdicts are kept a target; default 16.
	History int
	// Rand returns a number in [0,1), for concurrent callers; default math/rand/v2's. For tests.
	Rand func() float64
}

func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(max(c.Interval, 0), time.Second)
	c.Timeout = cmp.Or(max(c.Timeout, 0), 500*time.Millisecond)
	c.Rise = cmp.Or(max(c.Rise, 0), 2)
	c.Fall = cmp.Or(max(c.Fall, 0), 3)
	c.MaxRate = cmp.Or(max(c.MaxRate, 0), 200)
	c.History = cmp.Or(max(c.History, 0), 16)
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// Event is one verdict and what came of it.
type Event struct {
	Target string
	// Checker is the one that was given to Add: a verdict may still arrive just after Remove, and this tells it from
	// those of a target that was added under the same name since.
	Checker Checker
	Verdict Verdict
	// State is the target's state after the verdict, Was the one before.
	State, Was State
}

// Changed says whether the verdict changed the target's state.
func (e Event) Changed() bool { return e.State != e.Was }

// jitter is the share by which an interval may be shorter than it is set, never longer: "out within interval +
// timeout x fall" holds.
const jitter = 0.1

// Probes of a large pool begin some at once: a processor that is woken up for one costs little more for many. A pool is
// large when leastTogether of them take from no interval more than half of its jitter; mostTogether bounds what a batch adds
// to the times that its probes measure.
const leastTogether, mostTogether = 16, 64

// together is how many probes of n targets begin at once.
func together(n int) int {
	if most := int(jitter / 2 * float64(n)); most >= leastTogether {
		return min(most, mostTogether)
	}
	return 1
}

// Scheduler probes targets that come and go, each from one goroutine of its own. After a probe that failed the next one
// follows at once (though not within a quarter of the timeout of the failed one's start, so that a refused connection is
// given more than a millisecond to come back), until the target is down.
type Scheduler struct {
	cfg    Config
	report func(Event)

	epoch   time.Time // what probes of a large pool are aligned to
	mu      sync.Mutex
	targets map[string]*target
	ctx     context.Context // Run's, nil before it
	stopped bool
	wg      sync.WaitGroup
}

// New returns a scheduler without targets. report gets every verdict, for one target in order, for several concurrently;
// it must not block for long.
func New(cfg Config, report func(Event)) *Scheduler {
	return &Scheduler{cfg: cfg.withDefaults(), report: report, epoch: time.Now(), targets: map[string]*target{}}
}

// Run probes until ctx ends, then waits for the probes in flight, closes every checker and returns ctx's error. Targets
// may be added before and during Run, which is called once.
func (s *Scheduler) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for _, t := range s.targets {
		s.start(t)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.wg.Wait()
	return ctx.Err()
}

// Add starts to probe a target and takes over its checker, which is closed when the target is removed or Run ends. It
// fails, and takes nothing over, when there is a target of that name or Run has ended.
func (s *Scheduler) Add(name string, c Checker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("healthcheck: the scheduler has stopped")
	}
	if s.targets[name] != nil {
		return fmt.Errorf("healthcheck: %s is probed already; remove it first", name)
	}
	t := newTarget(name, c, s.cfg)
	s.targets[name] = t
	if s.ctx != nil {
		s.start(t)
	}
	return nil
}

// Remove stops to probe a target. It does not wait: a probe in flight is cancelled and its checker closed by the target's
// goroutine. Unknown names are ignored.
func (s *Scheduler) Remove(name string) {
	s.mu.Lock()
	t := s.targets[name]
	delete(s.targets, name)
	s.mu.Unlock()
	switch {
	case t == nil:
	case t.cancel != nil:
		t.cancel()
	default:
		t.checker.Close()
	}
}

// Nudge asks for a probe of the target now, because something else saw it fail. It never blocks.
func (s *Scheduler) Nudge(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.targets[name]; t != nil {
		select {
		case t.nudge <- struct{}{}:
		default:
		}
	}
}

// State returns the state of a target, Unknown when there is none.
func (s *Scheduler) State(name string) State {
	s.mu.Lock()
	t := s.targets[name]
	s.mu.Unlock()
	if t == nil {
		return Unknown
	}
	return t.state()
}

// Status returns all targets, ascending by name.
func (s *Scheduler) Status() []TargetStatus {
	s.mu.Lock()
	targets := make([]*target, 0, len(s.targets))
	for _, t := range s.targets {
		targets = append(targets, t)
	}
	s.mu.Unlock()
	out := make([]TargetStatus, 0, len(targets))
	for _, t := range targets {
		out = append(out, t.snapshot())
	}
	slices.SortFunc(out, func(a, b TargetStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Interval returns the interval in force, which grows with the number of targets.
func (s *Scheduler) Interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.interval()
}

func (s *Scheduler) interval() time.Duration {
	return max(s.cfg.Interval, time.Duration(float64(len(s.targets))/s.cfg.MaxRate*float64(time.Second)))
}

// start begins a target's goroutine, under mu. The first probes of many targets are spread over a moment, so that a pool
// of thousands does not connect at once and one of three does not wait.
func (s *Scheduler) start(t *target) {
	const spread = 2 * time.Millisecond // a target
	window := min(s.interval()/4, time.Duration(len(s.targets))*spread)
	first := time.Duration(s.cfg.Rand() * float64(window))
	ctx, cancel := context.WithCancel(s.ctx)
	t.cancel = cancel
	s.wg.Go(func() {
		defer cancel()
		defer t.checker.Close()
		s.loop(ctx, t, first)
	})
}

// loop probes one target until ctx ends.
func (s *Scheduler) loop(ctx context.Context, t *target, delay time.Duration) {
	gap := time.Duration(0) // the part of delay that a nudge cannot shorten
	for t.sleep(ctx, gap, delay-gap) {
		begun := time.Now()
		v := s.probe(ctx, t.checker, begun)
		if ctx.Err() != nil {
			return
		}
		e := t.record(v)
		s.report(e)

		wait := s.wait(begun, e.Was == Unknown)
		if !v.Passed() && e.State != Down {
			wait = s.cfg.Timeout / 4
		}
		took := time.Since(begun)
		delay = max(wait-took, 0)
		gap = min(max(s.cfg.Timeout/4-took, 0), delay)
	}
}

// wait is how long after a probe's begin the next one follows.
func (s *Scheduler) wait(begun time.Time, first bool) time.Duration {
	s.mu.Lock()
	interval, n := s.interval(), len(s.targets)
	s.mu.Unlock()
	wait := time.Duration(float64(interval) * (1 - jitter*s.cfg.Rand()))
	if first {
		// Targets that came together part here.
		wait = time.Duration(float64(wait) * (0.1 + 0.9*s.cfg.Rand()))
	}
	if batch := together(n); batch > 1 {
		wait -= (begun.Sub(s.epoch) + wait) % (time.Duration(batch) * interval / time.Duration(n))
	}
	return wait
}

// probe checks once within the timeout.
func (s *Scheduler) probe(ctx context.Context, c Checker, begun time.Time) Verdict {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	v := c.Check(ctx)
	if v.At.IsZero() {
		v.At = time.Now()
		v.Took = v.At.Sub(begun)
	}
	return v
}
