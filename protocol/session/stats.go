package session

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/kvip/kvip/protocol/answer"
)

// Outcome is what became of a request; the names are metric labels.
type Outcome uint8

// The outcomes (contract: kvip_requests_total).
const (
	Local Outcome = iota
	Forwarded
	Refused
	Throttled
	Failed
	outcomes
)

var outcomeNames = [outcomes]string{"local", "forwarded", "refused", "throttled", "failed"}

// String returns the outcome's label.
func (o Outcome) String() string { return outcomeNames[o] }

// Bounds of the counters: keys and versions above are counted in the last place, so that a peer's bytes cannot make series.
const (
	statKeys     = 128
	statVersions = 24
)

// DurationBounds are the upper bounds of the duration histogram, in seconds; one more bucket takes the rest.
var DurationBounds = [...]float64{
	25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10,
}

var boundNanos = func() (ns [len(DurationBounds)]time.Duration) {
	for i, s := range DurationBounds {
		ns[i] = time.Duration(math.Round(s * 1e9))
	}
	return ns
}()

// Stats counts requests. One event loop writes to its own, so that the counters are never contended; anybody may read.
type Stats struct {
	requests  [statKeys][statVersions][outcomes]atomic.Uint64
	durations [statKeys][outcomes]durations
}

// Tally is how whoever drives sessions, one goroutine, counts into Stats: how long a local answer took is known only
// once it is written out.
type Tally struct {
	*Stats
	batch []int16 // keys answered locally since the last Flushed
	// request is the one being served: here, because an argument of an answerer would be allocated for each.
	request answer.Request
}

type durations struct {
	buckets [len(DurationBounds) + 1]atomic.Uint64
	sum     atomic.Uint64 // nanoseconds
}

func place(key, version int16) (int, int) {
	k, v := int(key), int(version)
	if k < 0 || k >= statKeys {
		k = statKeys - 1
	}
	if v < 0 || v >= statVersions {
		v = statVersions - 1
	}
	return k, v
}

func (s *Stats) count(key, version int16, o Outcome) {
	k, v := place(key, version)
	s.requests[k][v][o].Add(1)
}

func (s *Tally) local(key, version int16) {
	s.count(key, version, Local)
	s.batch = append(s.batch, key)
}

// Unflushed says that local answers were given since the last Flushed.
func (s *Tally) Unflushed() bool { return len(s.batch) > 0 }

// Flushed says that the answers given since the last call took d from the arrival of their requests to the socket.
func (s *Tally) Flushed(d time.Duration) {
	for _, key := range s.batch {
		s.observe(key, Local, d)
	}
	s.batch = s.batch[:0]
}

func (s *Stats) observe(key int16, o Outcome, d time.Duration) {
	k, _ := place(key, 0)
	h := &s.durations[k][o]
	h.sum.Add(uint64(d))
	i := 0
	for i < len(boundNanos) && d > boundNanos[i] {
		i++
	}
	h.buckets[i].Add(1)
}

// Requests calls f for every counter that is not zero. The last key and version stand for all above.
func (s *Stats) Requests(f func(key, version int16, o Outcome, n uint64)) {
	for k := range s.requests {
		for v := range s.requests[k] {
			for o := range s.requests[k][v] {
				if n := s.requests[k][v][o].Load(); n > 0 {
					f(int16(k), int16(v), Outcome(o), n)
				}
			}
		}
	}
}

// Durations calls f for every histogram that is not empty, with cumulative counts by bucket (the last is the total) and
// the sum in seconds.
func (s *Stats) Durations(f func(key int16, o Outcome, cumulative []uint64, sum float64)) {
	var cumulative [len(DurationBounds) + 1]uint64
	for k := range s.durations {
		for o := range s.durations[k] {
			h, total := &s.durations[k][o], uint64(0)
			for i := range h.buckets {
				total += h.buckets[i].Load()
				cumulative[i] = total
			}
			if total > 0 {
				f(int16(k), Outcome(o), cumulative[:], time.Duration(h.sum.Load()).Seconds())
			}
		}
	}
}

// OtherKey and OtherVersion are what Requests and Durations pass for all keys and versions above the counters.
const (
	OtherKey     = statKeys - 1
	OtherVersion = statVersions - 1
)
