package policy

import (
	"cmp"
	"fmt"
	"slices"
)

// sourceHash takes the client's address and port modulo the number of slots, as an L4 balancer does that keeps no state:
// simple, uneven where clients are few, and blind to changes: when a member comes or goes, nearly every client is dealt
// another one.
type sourceHash struct {
	// slots are members by address, each as often as its weight says.
	slots []int32
}

func newSourceHash(members []Member, _ Picker) Picker {
	order := make([]int32, len(members))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(members[a].Addr, members[b].Addr) })
	weights := reduced(members)
	s := &sourceHash{}
	for _, i := range order {
		for range weights[i] {
			s.slots = append(s.slots, i)
		}
	}
	return s
}

func (s *sourceHash) slot(client uint64) int { return int(mix(client) % uint64(len(s.slots))) }

func (s *sourceHash) Pick(client uint64) int {
	if len(s.slots) == 0 {
		return -1
	}
	return int(s.slots[s.slot(client)])
}

func (s *sourceHash) Explain(client uint64) (int, string) {
	i := s.Pick(client)
	if i < 0 {
		return i, ""
	}
	return i, fmt.Sprintf("the client's address and port, %016x, fall into slot %d of %d", client, s.slot(client), len(s.slots))
}
