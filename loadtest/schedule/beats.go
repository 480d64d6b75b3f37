package schedule

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Arrival is how operations are spread around a profile's rate.
type Arrival string

// The arrivals.
const (
	Regular Arrival = "regular" // evenly
	Poisson Arrival = "poisson" // each independent of all others, as clients that know nothing of each other are
)

// Beats are the moments of a profile's operations, or of one part of them: the parts together are the profile, however many
// threads and processes share it. Not for concurrent use.
type Beats struct {
	profile *Profile
	arrival Arrival
	part    int
	parts   int
	random  *rand.Rand
	done    float64 // operations of the profile that lie behind
	segment int
	index   int // of the next moment in this part
}

// Beats returns part of parts (counted from 0) of the profile's moments. The same seed gives the same moments.
func (p *Profile) Beats(arrival Arrival, seed uint64, part, parts int) (*Beats, error) {
	if part < 0 || part >= parts {
		return nil, fmt.Errorf("part %d of %d parts of a schedule", part, parts)
	}
	switch arrival {
	case Regular, Poisson:
	default:
		return nil, fmt.Errorf("unknown arrival %q: regular or poisson", arrival)
	}
	return &Beats{profile: p, arrival: arrival, part: part, parts: parts, random: rand.New(rand.NewPCG(seed, uint64(part)))}, nil
}

// Next is the next moment, since the profile's begin; ok is false after the last one.
func (b *Beats) Next() (at time.Duration, ok bool) {
	position := b.part + b.index*b.parts
	b.index++
	switch {
	case b.profile.trace != nil:
		if position >= len(b.profile.trace) {
			return 0, false
		}
		return b.profile.trace[position], true
	case b.arrival == Poisson:
		// Time is stretched so that the rate is 1: there, gaps are exponential.
		b.done += b.random.ExpFloat64() * float64(b.parts)
	default:
		b.done = float64(position) + 0.5
	}
	return b.profile.at(&b.segment, b.done)
}
