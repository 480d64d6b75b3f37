// Package record keeps what a run measured: histograms per stage, failures per class, both by time, and how far the
// generator itself was behind. A Recorder belongs to one loop; Results of loops merge without loss.
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
	Operation       Stage = iota // the whole operation, from its intended start
	Connect                      // TCP connection
	APIVersions                  // request to answer
	Metadata                     // request to answer
	DescribeCluster              // request to answer
	FindCoordinator              // request to answer
	Handoff                      // TCP connections to every advertised broker
	Recovery                     // from the drop of a connection until its client is served again
	SlowReader                   // answers to a slow reader beside other load; a whole operation, kept out of Operation
	Hostile                      // hostile bytes beside other load, until they are dealt with; likewise
	Age                          // how long before it was asked for a broker last said what an answer says; 0: after that, too
	Lag                          // the generator's own: actual minus intended start
	Poll                         // the generator's own: how long an event may have waited for it
	Stages                       // number of stages; not a stage
)

var stageNames = [Stages]string{"operation", "connect", "api_versions", "metadata", "describe_cluster", "find_coordinator", "handoff", "recovery", "slow_reader", "hostile", "age", "lag", "poll"}

// String is the stage's name in reports and JSON.
func (s Stage) String() string { return stageNames[s] }

// Histograms hold nanoseconds up to an hour, to three digits; those of a window, of which there are many, to two.
const (
	lowest       = int64(1)
	highest      = int64(time.Hour)
	digits       = 3
	windowDigits = 2
)

// samples is how many details are kept per failure class.
const samples = 5

// Result is what was counted.
type Result struct {
	Counts
	Waited  uint64 // operations that began late because no client was free
	Bytes   uint64 // of answers
	Details map[failure.Class][]string
	// PartitionErrors counts answers that name a partition with an error code: the truth while brokers are down.
	PartitionErrors uint64
	// CoordinatorErrors counts answers that name no coordinator yet: likewise.
	CoordinatorErrors uint64
	Refused           uint64                  // connections whose version of ApiVersions was refused, and asked again in a lower one
	Dropped           [failure.Classes]uint64 // kept connections that ended while nothing was asked, and were opened again
	Elapsed           time.Duration
	Stages            [Stages]*hdrhistogram.Histogram
	Windows           []Window // by time
}

// Counts are operations by what became of them. Those that began within the measurement count, whenever they end.
type Counts struct {
	Intended uint64 // that the schedule held; in a closed loop those begun
	Started  uint64
	Answered uint64 // whose every answer came and was right
	Failed   [failure.Classes]uint64
}

// Window is a slice of the measurement. Intended and started operations are counted in the window in which they should
// have begun, the others in that in which they ended; what ends after the last window is counted there.
type Window struct {
	Counts
	Open    int // connections open at its end
	Latency *hdrhistogram.Histogram
}

// Recorder counts for one loop, from Begin to End. Operations and their stages are counted by those who know whether they
// began within the measurement; what belongs to no operation counts while it lasts.
type Recorder struct {
	active bool
	length time.Duration // of a window
	last   int
	Result
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

// Plan forgets what was counted and makes room for a measurement of that length, cut into windows.
func (r *Recorder) Plan(length, window time.Duration) {
	r.Result = *NewResult()
	r.active, r.length = false, window
	r.Elapsed = length
	r.Windows = make([]Window, max(1, int((length+window-1)/window)))
	for i := range r.Windows {
		r.Windows[i].Latency = hdrhistogram.New(lowest, highest, windowDigits)
	}
	r.last = len(r.Windows) - 1
}

// Cut shortens the measurement to what was until now, a time since its begin.
func (r *Recorder) Cut(at time.Duration) {
	if at < r.Elapsed {
		r.Elapsed = at
		r.Windows = r.Windows[:max(1, min(len(r.Windows), int((at+r.length-1)/r.length)))]
		r.last = len(r.Windows) - 1
	}
}

// Begin starts to count what belongs to no operation.
func (r *Recorder) Begin() { r.active = true }

// End stops to count what belongs to no operation.
func (r *Recorder) End() { r.active = false }

// window is the one at a time since the measurement's begin.
func (r *Recorder) window(at time.Duration) *Window {
	return &r.Windows[min(max(int(at/r.length), 0), r.last)]
}

// Intend counts an operation that the schedule holds for that time since the measurement's begin.
func (r *Recorder) Intend(at time.Duration) {
	r.Intended++
	r.window(at).Intended++
}

// Start counts an operation begun, late by lag.
func (r *Recorder) Start(at, lag time.Duration) {
	r.Started++
	r.window(at).Started++
	r.record(Lag, lag)
}

// Answer counts an operation that succeeded at a time since the measurement's begin, and how long it took from its intended
// start.
func (r *Recorder) Answer(at time.Duration, stage Stage, took time.Duration) {
	r.Answered++
	r.record(stage, took)
	w := r.window(at)
	w.Answered++
	if stage == Operation {
		_ = w.Latency.RecordValue(within(took))
	}
}

// Fail counts an operation that failed. Its time is not recorded: reports show failures beside the percentiles.
func (r *Recorder) Fail(at time.Duration, class failure.Class, detail string) {
	r.Failed[class]++
	r.window(at).Failed[class]++
	if detail != "" && len(r.Details[class]) < samples {
		r.Details[class] = append(r.Details[class], detail)
	}
}

// Retract turns an operation that was counted as answered at that time into one that failed.
func (r *Recorder) Retract(at time.Duration, class failure.Class, detail string) {
	r.Answered--
	r.window(at).Answered--
	r.Fail(at, class, detail)
}

// Took records how long a stage of an operation took.
func (r *Recorder) Took(s Stage, d time.Duration) { r.record(s, d) }

// Saw records how long something took that belongs to no operation.
func (r *Recorder) Saw(s Stage, d time.Duration) {
	if r.active {
		r.record(s, d)
	}
}

func (r *Recorder) record(s Stage, d time.Duration) {
	_ = r.Stages[s].RecordValue(within(d)) // the bounds make an error impossible
}

func within(d time.Duration) int64 { return min(max(int64(d), 0), highest) }

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

// CoordinatorError counts an answer that names no coordinator yet.
func (r *Recorder) CoordinatorError() {
	if r.active {
		r.CoordinatorErrors++
	}
}

// Refuse counts a connection whose version of ApiVersions was refused.
func (r *Recorder) Refuse() {
	if r.active {
		r.Refused++
	}
}

// Lost counts a kept connection that ended while nothing was asked on it.
func (r *Recorder) Lost(class failure.Class) {
	if r.active {
		r.Dropped[class]++
	}
}

// Holds says how many connections are open at a time.
func (r *Recorder) Holds(at time.Duration, open int) {
	if r.active {
		r.window(at).Open = open
	}
}

// Merge adds what another loop counted at the same time.
func (r *Result) Merge(other *Result) {
	r.merge(other)
	r.Elapsed = max(r.Elapsed, other.Elapsed)
	for i, w := range other.Windows {
		if i == len(r.Windows) {
			r.Windows = append(r.Windows, Window{Latency: hdrhistogram.New(lowest, highest, windowDigits)})
		}
		mine := &r.Windows[i]
		mine.Counts.add(&w.Counts)
		mine.Open += w.Open
		mine.Latency.Merge(w.Latency)
	}
}

// Append adds what was counted later, in another turn.
func (r *Result) Append(later *Result) {
	r.merge(later)
	r.Elapsed += later.Elapsed
	r.Windows = append(r.Windows, later.Windows...)
}

func (r *Result) merge(other *Result) {
	r.Counts.add(&other.Counts)
	r.Waited += other.Waited
	r.Bytes += other.Bytes
	r.PartitionErrors += other.PartitionErrors
	r.Refused += other.Refused
	r.CoordinatorErrors += other.CoordinatorErrors
	for class, n := range other.Dropped {
		r.Dropped[class] += n
	}
	for class, details := range other.Details {
		room := samples - len(r.Details[class])
		r.Details[class] = append(r.Details[class], details[:min(max(room, 0), len(details))]...)
	}
	for s := range r.Stages {
		r.Stages[s].Merge(other.Stages[s]) // same bounds: nothing is dropped
	}
}

func (c *Counts) add(other *Counts) {
	c.Intended += other.Intended
	c.Started += other.Started
	c.Answered += other.Answered
	for class, n := range other.Failed {
		c.Failed[class] += n
	}
}

// TargetFailures is the number of operations that the target failed.
func (c *Counts) TargetFailures() uint64 { return c.failures(false) }

// LocalFailures is the number of operations that this machine failed.
func (c *Counts) LocalFailures() uint64 { return c.failures(true) }

func (c *Counts) failures(local bool) (n uint64) {
	for class, count := range c.Failed {
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
