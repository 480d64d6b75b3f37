package policy

import (
	"fmt"
	"math/rand/v2"
)

// leastInFlight draws two members at random, by weight, and picks the one with fewer requests in flight for its weight:
// nearly as even as asking all, without a herd on the least loaded one (Mitzenmacher, the power of two choices).
type leastInFlight struct {
	members []Member
	weights []int
	draws   []int32
}

func newLeastInFlight(members []Member, _ Picker) Picker {
	return &leastInFlight{members: members, weights: weightsOf(members), draws: schedule(members)}
}

func (l *leastInFlight) draw() int { return int(l.draws[rand.IntN(len(l.draws))]) }

func (l *leastInFlight) pick() (taken, other int) {
	a, b := l.draw(), l.draw()
	// The first drawn wins a draw, so that shares follow weights while nothing is in flight.
	if l.members[b].load()*int64(l.weights[a]) < l.members[a].load()*int64(l.weights[b]) {
		a, b = b, a
	}
	return a, b
}

func (l *leastInFlight) Pick(uint64) int {
	if len(l.draws) == 0 {
		return -1
	}
	taken, _ := l.pick()
	return taken
}

func (l *leastInFlight) Explain(uint64) (int, string) {
	if len(l.draws) == 0 {
		return -1, ""
	}
	taken, other := l.pick()
	t, o := &l.members[taken], &l.members[other]
	return taken, fmt.Sprintf("of two drawn at random, whoever asks, %s has %d requests in flight at weight %d and %s has %d at weight %d",
		t.Addr, t.load(), l.weights[taken], o.Addr, o.load(), l.weights[other])
}
