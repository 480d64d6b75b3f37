package policy

import (
	"fmt"
	"math/rand/v2"
)

// queueSample is how many members a pick looks at: all of a pool of up to that many, else those of as many turns of the
// round.
const queueSample = 16

// sameQueue evens out queues: a request goes to the members whose requests in flight, for their weight, are below the
// average, in proportion to how far below, and never to one above it. When all are equal it goes in turn.
type sameQueue struct {
	members []Member
	weights []int
	// all are the members of a small pool that count.
	all   []int32
	turns *roundRobin
}

func newSameQueue(members []Member, _ Picker) Picker {
	s := &sameQueue{members: members, weights: weightsOf(members), turns: newRoundRobin(members, nil).(*roundRobin)}
	if len(members) <= queueSample {
		for i, w := range s.weights {
			if w > 0 {
				s.all = append(s.all, int32(i))
			}
		}
	}
	return s
}

// pick also returns the average queue for a unit of weight, as it was seen.
func (s *sameQueue) pick() (taken int, average float64) {
	turn := s.turns.next.Add(1)
	slots := uint64(len(s.turns.schedule))
	taken = int(s.turns.schedule[turn%slots])
	var queue [queueSample]float64 // in flight
	var seats [queueSample]float64 // weight
	n := len(s.all)
	if n == 0 {
		// A heavy member has more turns, so that each turn counts for one.
		n = int(min(queueSample, slots))
	}
	member := func(k int) int {
		if len(s.all) > 0 {
			return int(s.all[k])
		}
		return int(s.turns.schedule[(turn+uint64(k))%slots])
	}
	var load, weight float64
	for k := range n {
		i := member(k)
		queue[k], seats[k] = float64(s.members[i].load()), float64(s.weights[i])
		if len(s.all) == 0 {
			queue[k], seats[k] = queue[k]/seats[k], 1
		}
		load += queue[k]
		weight += seats[k]
	}
	average = load / weight
	below := 0.0
	for k := range n {
		below += max(0, average*seats[k]-queue[k])
	}
	// Rounding must not make a difference where there is none.
	if below <= 1e-9*(load+1) {
		return taken, average
	}
	at := rand.Float64() * below
	for k := range n {
		gap := average*seats[k] - queue[k]
		if gap <= 0 {
			continue
		}
		taken = member(k)
		if at -= gap; at < 0 {
			break
		}
	}
	return taken, average
}

func (s *sameQueue) Pick(uint64) int {
	if len(s.turns.schedule) == 0 {
		return -1
	}
	taken, _ := s.pick()
	return taken
}

func (s *sameQueue) Explain(uint64) (int, string) {
	if len(s.turns.schedule) == 0 {
		return -1, ""
	}
	i, average := s.pick()
	return i, fmt.Sprintf("its queue, %d in flight at weight %d, is not above the average of %.2f for a unit of weight; those below it are drawn by how far, whoever asks",
		s.members[i].load(), s.weights[i], average)
}
