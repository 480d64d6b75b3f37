// Package record keeps what a run measured: histograms per stage, failures per class, how far the generator itself was
// behind. A Recorder belongs to one loop; Results of loops, processes and machines merge without loss.
package record

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/kvip/kvip/loadtest/failure"
)

// Stage is a part of an operation that has a histogram of its own.
type Stage uint8

// The stages, in the order in which reports list them.
const (
	Operation   Stage = iota // the whole operation, from its intended start
	Connect                  // TCP connection
	APIVersions              // request to answer
	Metadata                 // request to answer
	Lag                      // the generator's own: actual minus intended start
	Poll                     // the generator's own: from the kernel's report of an event to its handling
	Stages                   // number of stages; not a stage
)

var stageNames = [Stages]string{"operation", "connect", "api_versions", "metadata", "lag", "poll"}

// String is the stage's name in reports and JSON.
func (s Stage) String() string { return stageNames[s] }

// Histograms hold nanoseconds up to an hour, to three digits.
const (
	lowest  = int64(1)
	highest = int64(time.Hour)
	digits  = 3
)

// samples is how many details are kept per failure class.
const samples = 5

// Recorder counts for one loop. Between Begin and End it counts, outside it does not.
type Recorder struct {
	active bool
	Result
}

// Result is what was counted.
type Result struct {
	Started  uint64 // operations begun
	Answered uint64 // operations whose every answer came and was right
	Bytes    uint64 // of answers
	Failed   [failure.Classes]uint64
	Details  map[failure.Class][]string // a few per class
	// PartitionErrors counts answers that name a partition with an error code: the truth while brokers are down.
	PartitionErrors uint64
	Dropped         [failure.Classes]uint64 // kept connections that ended while nothing was asked, and were opened again
	Elapsed         time.Duration
	Stages          [Stages]*hdrhistogram.Histogram
}

// NewRecorder returns a recorder that does not count yet.
func NewRecorder() *Recorder { return &Recorder{Result: *NewResult()} }

// NewResult returns an empty result.
func NewResult() *Result {
	r := &Result{Details: map[failure.Class][]string{}}
	for s := range r.Stages {
		r.Stages[s] = hdrhistogram.New(lowest, highest, digits)
	}
	return r
}

// Begin starts to count.
func (r *Recorder) Begin() { r.active = true }

// End stops to count.
func (r *Recorder) End() { r.active = false }

// Start counts an operation begun.
func (r *Recorder) Start() {
	if r.active {
		r.Started++
	}
}

// Took records how long a stage took.
func (r *Recorder) Took(s Stage, d time.Duration) {
	if r.active {
		// The bounds make an error impossible.
		_ = r.Stages[s].RecordValue(min(max(int64(d), 0), highest))
	}
}

// Answer counts an operation that succeeded, and its time from its intended start.
func (r *Recorder) Answer(d time.Duration) {
	if r.active {
		r.Answered++
		r.Took(Operation, d)
	}
}

// Received counts an answer's bytes.
func (r *Recorder) Received(n int) {
	if r.active {
		r.Bytes += uint64(n)
	}
}

// PartitionError counts an answer that names a partition with an error.
func (r *Recorder) PartitionError() {
	if r.active {
		r.PartitionErrors++
	}
}

// Lost counts a kept connection that ended while nothing was asked on it.
func (r *Recorder) Lost(class failure.Class) {
	if r.active {
		r.Dropped[class]++
	}
}

// Fail counts an operation that failed. Its time is not recorded: reports show failures beside the percentiles.
func (r *Recorder) Fail(class failure.Class, detail string) {
	if !r.active {
		return
	}
	r.Failed[class]++
	if detail != "" && len(r.Details[class]) < samples {
		r.Details[class] = append(r.Details[class], detail)
	}
}

// Merge adds other to r.
func (r *Result) Merge(other *Result) {
	r.Started += other.Started
	r.Answered += other.Answered
	r.Bytes += other.Bytes
	r.PartitionErrors += other.PartitionErrors
	r.Elapsed = max(r.Elapsed, other.Elapsed)
	for class, n := range other.Failed {
		r.Failed[class] += n
		r.Dropped[class] += other.Dropped[class]
	}
	for class, details := range other.Details {
		room := samples - len(r.Details[class])
		r.Details[class] = append(r.Details[class], details[:min(max(room, 0), len(details))]...)
	}
	for s := range r.Stages {
		r.Stages[s].Merge(other.Stages[s]) // same bounds: nothing is dropped
	}
}

// TargetFailures is the number of operations that the target failed.
func (r *Result) TargetFailures() uint64 { return r.failures(false) }

// LocalFailures is the number of operations that this machine failed.
func (r *Result) LocalFailures() uint64 { return r.failures(true) }

func (r *Result) failures(local bool) (n uint64) {
	for class, count := range r.Failed {
		if failure.Class(class).Local() == local {
			n += count
		}
	}
	return n
}

// Rate is answered operations per second.
func (r *Result) Rate() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Answered) / r.Elapsed.Seconds()
}
