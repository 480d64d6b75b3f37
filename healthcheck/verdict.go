// Package healthcheck decides, by rise and fall over probe verdicts, whether a target is up. It knows no protocol: a
// probe is a Checker, and package healthcheck/probe has the Kafka ones. Among targets that are up, Outliers tells those that
// do much worse than their peers.
package healthcheck

import (
	"context"
	"time"
)

// Reason is why a probe failed: a bounded set of snake_case words fit for a metric label ("connect", "timeout",
// "not_listed", "wrong_cluster", ...). OK is the empty Reason.
type Reason string

// OK is the reason of a probe that passed.
const OK Reason = ""

// Verdict is the outcome of one probe.
type Verdict struct {
	Reason Reason
	// Detail says it for a person, with both values where two disagree ("cluster id is B, the pool's is A").
	Detail string
	// Took is how long the probe took.
	Took time.Duration
	// At is when it ended.
	At time.Time
}

// Passed says whether the probe passed.
func (v Verdict) Passed() bool { return v.Reason == OK }

// Checker probes one target once. Check returns within ctx, keeps what it likes between calls (one connection, say), and
// is never called concurrently with itself. Close frees what it kept.
type Checker interface {
	Check(ctx context.Context) Verdict
	Close()
}
