package healthcheck

import (
	"context"
	"slices"
	"sync"
	"time"
)

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

// MarshalText writes the state as String does.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

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

// target is the state machine of one target.
type target struct {
	name    string
	checker Checker
	cfg     Config
	nudge   chan struct{} // capacity 1
	cancel  context.CancelFunc

	mu     sync.Mutex
	status TargetStatus
	oldest int // where the ring of status.History begins
}

func newTarget(name string, c Checker, cfg Config) *target {
	return &target{
		name: name, checker: c, cfg: cfg, nudge: make(chan struct{}, 1),
		status: TargetStatus{Name: name, Since: time.Now()},
	}
}

// sleep waits for gap and then for rest, of which a nudge frees it. It says whether to go on.
func (t *target) sleep(ctx context.Context, gap, rest time.Duration) bool {
	if gap > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(gap):
		}
	}
	if rest > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		case <-t.nudge:
		}
	}
	return ctx.Err() == nil
}

// record takes a verdict and decides the state by rise and fall.
func (t *target) record(v Verdict) Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.status
	was := s.State
	s.Last = v
	s.Probes++
	if v.Passed() {
		s.Streak = max(s.Streak, 0) + 1
	} else {
		s.Streak = min(s.Streak, 0) - 1
		s.Failures++
		s.LastFailure = v
	}
	switch {
	case v.Passed() && (was == Unknown || was == Down && s.Streak >= t.cfg.Rise):
		s.State = Up
	case !v.Passed() && (was == Unknown || was == Up && -s.Streak >= t.cfg.Fall):
		s.State = Down
	}
	if s.State != was {
		s.Since = v.At
	}
	if len(s.History) < t.cfg.History {
		s.History = append(s.History, v)
	} else {
		s.History[t.oldest] = v
		t.oldest = (t.oldest + 1) % len(s.History)
	}
	return Event{Target: t.name, Checker: t.checker, Verdict: v, State: s.State, Was: was}
}

func (t *target) state() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status.State
}

// snapshot copies the status, its history in order.
func (t *target) snapshot() TargetStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.status
	s.History = slices.Concat(s.History[t.oldest:], s.History[:t.oldest])
	return s
}
