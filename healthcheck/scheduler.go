package healthcheck

import (
	"context"
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
	// Rand returns a number in [0,1); default math/rand/v2's. For tests.
	Rand func() float64
}

// State is what the verdicts so far say about a target.
type State int

// The states. A target is Unknown until its first verdict.
const (
	Unknown State = iota
	Up
	Down
)

// String returns "unknown", "up" or "down".
func (s State) String() string { return [...]string{"unknown", "up", "down"}[s] }

// Event is one verdict and what came of it.
type Event struct {
	Target  string
	Verdict Verdict
	// State is the target's state after the verdict, Was the one before.
	State, Was State
}

// Changed says whether the verdict changed the target's state.
func (e Event) Changed() bool { return e.State != e.Was }

// Scheduler probes targets that come and go, each from one goroutine of its own.
type Scheduler struct{ cfg Config }

// New returns a scheduler without targets. report gets every verdict: for one target in order, for several concurrently;
// it must not block for long, and must not call Remove for its own target and wait.
func New(cfg Config, report func(Event)) *Scheduler { return &Scheduler{cfg: cfg} }

// Run probes until ctx ends, then waits for the probes in flight, closes every checker and returns ctx's error. Targets
// may be added before and during Run.
func (s *Scheduler) Run(ctx context.Context) error { return nil }

// Add starts to probe a target and takes over its checker, which it closes when the target is removed or Run ends. A
// target of that name must be removed first: it is an error otherwise.
func (s *Scheduler) Add(name string, c Checker) error { return nil }

// Remove stops to probe a target. It does not wait: a probe in flight is cancelled, its verdict dropped, its checker
// closed by the target's goroutine. Unknown names are ignored.
func (s *Scheduler) Remove(name string) {}

// Nudge asks for a probe of the target now, because something else saw it fail. It never blocks.
func (s *Scheduler) Nudge(name string) {}

// State returns the state of a target, Unknown when there is none.
func (s *Scheduler) State(name string) State { return Unknown }

// Status returns all targets, ascending by name.
func (s *Scheduler) Status() []TargetStatus { return nil }

// Interval returns the interval in force, which grows with the number of targets.
func (s *Scheduler) Interval() time.Duration { return 0 }

// TargetStatus is what is known about one target.
type TargetStatus struct {
	Name  string
	State State
	// Since is when the state began.
	Since time.Time
	// Streak counts the last verdicts that agree: passes above zero, failures below.
	Streak int
	// Last is the last verdict, LastFailure the last that failed, however long ago; At is zero when there was none.
	Last, LastFailure Verdict
	// Probes and Failures count verdicts since the target was added.
	Probes, Failures uint64
	// History are the last verdicts, oldest first.
	History []Verdict
}
