// Package schedule says when operations should begin: a rate over time, and the moments that follow from it. The moments
// depend on nothing that the target does, so that a target which stalls is charged for everybody whom it kept waiting.
package schedule

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Segment is a piece of a profile: a rate that goes evenly from one value to another.
type Segment struct {
	Length   time.Duration
	From, To float64 // operations per second
}

// count is how many operations begin within the first t of the segment.
func (s Segment) count(t float64) float64 {
	length := s.Length.Seconds()
	return s.From*t + (s.To-s.From)*t*t/(2*length)
}

// at is when count operations of the segment have begun: the inverse of count.
func (s Segment) at(count float64) float64 {
	slope := (s.To - s.From) / s.Length.Seconds()
	// The stable form of the root: it does not lose its digits where the slope is near 0.
	root := math.Sqrt(max(0, s.From*s.From+2*slope*count))
	if s.From+root == 0 {
		return 0
	}
	return 2 * count / (s.From + root)
}

// Profile is a rate over time. It does not change.
type Profile struct {
	segments []Segment
	counts   []float64       // operations before each segment, and in all
	starts   []time.Duration // of each segment, and the end
	trace    []time.Duration // instead of segments: when each operation begins
}

// New returns the profile of segments in a row. It refuses an empty one, one without an operation, and rates that are no
// rates.
func New(segments ...Segment) (*Profile, error) {
	if len(segments) == 0 {
		return nil, errors.New("a profile needs at least one segment")
	}
	p := &Profile{segments: segments, counts: []float64{0}, starts: []time.Duration{0}}
	for i, s := range segments {
		if s.Length <= 0 || !rate(s.From) || !rate(s.To) {
			return nil, fmt.Errorf("segment %d: %s from %g/s to %g/s: the length must be positive, a rate 0 to %g", i+1, s.Length, s.From, s.To, float64(maxRate))
		}
		p.counts = append(p.counts, p.counts[i]+s.count(s.Length.Seconds()))
		p.starts = append(p.starts, p.starts[i]+s.Length)
	}
	if p.Count() <= 0 {
		return nil, errors.New("the profile holds no operation: every rate is 0")
	}
	return p, nil
}

const maxRate = 10_000_000

func rate(v float64) bool { return v >= 0 && v <= maxRate }

// Length is how long the profile is.
func (p *Profile) Length() time.Duration { return p.starts[len(p.starts)-1] }

// Count is how many operations the profile holds; with a Poisson arrival, on average.
func (p *Profile) Count() float64 {
	if p.trace != nil {
		return float64(len(p.trace))
	}
	return p.counts[len(p.counts)-1]
}

// Peak is the highest rate per second; of a trace, within any of its tenths of a second.
func (p *Profile) Peak() float64 {
	peak := 0.0
	for _, s := range p.segments {
		peak = max(peak, s.From, s.To)
	}
	for from, to := 0, 0; to < len(p.trace); to++ {
		for p.trace[to]-p.trace[from] > time.Second/10 {
			from++
		}
		peak = max(peak, 10*float64(to-from+1))
	}
	return peak
}

// at inverts the cumulated profile: when count operations have begun. ok is false beyond its end.
func (p *Profile) at(segment *int, count float64) (t time.Duration, ok bool) {
	for *segment < len(p.segments) {
		i := *segment
		if count < p.counts[i+1] {
			within := p.segments[i].at(count - p.counts[i])
			return p.starts[i] + min(time.Duration(within*float64(time.Second)), p.segments[i].Length), true
		}
		*segment++
	}
	return 0, false
}

// After returns the profile that begins after a warm-up at this profile's first rate. A trace is preceded by silence.
func (p *Profile) After(warmup time.Duration) *Profile {
	if warmup <= 0 {
		return p
	}
	if p.trace != nil {
		later := &Profile{starts: []time.Duration{0, p.Length() + warmup}}
		for _, at := range p.trace {
			later.trace = append(later.trace, at+warmup)
		}
		return later
	}
	// Segments of a profile are good ones, and one more does not make them bad.
	later, _ := New(append([]Segment{{warmup, p.segments[0].From, p.segments[0].From}}, p.segments...)...)
	return later
}
