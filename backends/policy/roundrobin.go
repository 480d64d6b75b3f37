package policy

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// maxSchedule bounds a prepared schedule: weights whose sum, reduced, is above it are scaled down to it.
const maxSchedule = 1 << 14

type roundRobin struct {
	schedule []int32
	next     atomic.Uint64
}

// newRoundRobin picks members in turn, each as often as its weight says, spread as evenly as the weights allow (smooth
// weighted round robin, as nginx does it). The schedule is prepared: a pick is one atomic addition. It starts at a random
// place, so that pools that are rebuilt often, and many kvips, do not all begin with the first member.
func newRoundRobin(members []Member, _ Picker) Picker {
	r := &roundRobin{schedule: schedule(members)}
	if n := len(r.schedule); n > 0 {
		r.next.Store(rand.Uint64N(uint64(n)))
	}
	return r
}

func (r *roundRobin) Pick(uint64) int {
	if len(r.schedule) == 0 {
		return -1
	}
	return int(r.schedule[r.next.Add(1)%uint64(len(r.schedule))])
}

func (r *roundRobin) Explain(client uint64) (int, string) {
	return r.Pick(client), "every request gets the next broker in turn, whoever asks; this is one turn's"
}

// schedule lays out one round: member i occurs in proportion to its weight. Members of equal weight form a class; the
// smooth algorithm runs over the classes and each class takes its members in turn, which costs a round times the number
// of different weights instead of a round times the number of members.
func schedule(members []Member) []int32 {
	weights := reduced(members)
	type class struct {
		weight, share, current int
		members                []int32
		next                   int
	}
	var classes []*class
	total := 0
	for i, w := range weights {
		if w == 0 {
			continue
		}
		total += w
		at := slices.IndexFunc(classes, func(c *class) bool { return c.weight == w })
		if at < 0 {
			at = len(classes)
			classes = append(classes, &class{weight: w})
		}
		classes[at].members = append(classes[at].members, int32(i))
		classes[at].share += w
	}
	round := make([]int32, 0, total)
	for range total {
		var best *class
		for _, c := range classes {
			c.current += c.share
			if best == nil || c.current > best.current {
				best = c
			}
		}
		best.current -= total
		round = append(round, best.members[best.next])
		best.next = (best.next + 1) % len(best.members)
	}
	return round
}

// reduced returns the members' weights without their common divisor and with a sum of at most maxSchedule (or one each,
// if there are more members than that); all zero weights count as equal.
func reduced(members []Member) []int {
	weights := make([]int, len(members))
	sum, divisor := 0, 0
	for i, m := range members {
		weights[i] = max(0, m.Weight)
		sum += weights[i]
		divisor = gcd(divisor, weights[i])
	}
	if sum == 0 {
		for i := range weights {
			weights[i] = 1
		}
		return weights
	}
	if sum/divisor > maxSchedule {
		// A weight that rounds to nothing still gets its turn: it is small, not a drain.
		for i, w := range weights {
			if w > 0 {
				weights[i] = max(1, int(float64(w)/float64(sum)*maxSchedule+0.5))
			}
		}
		return weights
	}
	for i := range weights {
		weights[i] /= divisor
	}
	return weights
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
