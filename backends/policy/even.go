package policy

import "math/bits"

// evening makes shares follow weights on a ring whose points alone would not: members that have more than their share
// give the beginning of each of their arcs, all by the same proportion, to the next members on the ring that have less. It
// depends on where the points are and on nothing else, so that a change of one member changes little elsewhere.
type evening struct {
	// cut is the part of each of its arcs that an owner gives, in 2^-64.
	cut []uint64
	// taker is who gets the beginning of an arc, by the point that ends it; it counts for arcs that are cut only.
	taker []int32
}

// newEvening evens the shares of owners with those weights.
func newEvening(p points, weights []int) evening {
	const circle = 1 << 64
	total, owners := 0, 0
	for _, w := range weights {
		total += w
		if w > 0 {
			owners++
		}
	}
	if owners < 2 {
		return evening{}
	}
	n := p.len()
	own := make([]uint64, len(weights))
	before := p.place[n-1]
	for k, place := range p.place {
		own[p.owner[k]] += place - before
		before = place
	}
	e := evening{cut: make([]uint64, len(weights)), taker: make([]int32, n)}
	room := make([]int64, len(weights)) // what an owner still lacks
	for i, w := range weights {
		if w == 0 {
			continue
		}
		fair := uint64(min(circle*(float64(w)/float64(total)), circle-1<<11))
		if own[i] > fair {
			e.cut[i], _ = bits.Div64(own[i]-fair, 0, own[i])
		} else {
			room[i] = int64((fair - own[i]) / 2) // the halves of a circle fit
		}
	}
	e.deal(p, room)
	return e
}

// deal finds the takers. What is given of one arc goes to one of them, even if it is more than it lacks: that is a part of
// one arc of many.
func (e *evening) deal(p points, room []int64) {
	n := p.len()
	skip := make([]uint16, n) // how many points on from one to look for one that has room; rooms only shrink
	before := p.place[n-1]
	for k, place := range p.place {
		arc := place - before
		before = place
		cut := e.cut[p.owner[k]]
		if cut == 0 {
			continue
		}
		given, _ := bits.Mul64(arc, cut)
		e.taker[k] = p.owner[k]
		j := wrap(k+1, n)
		for range n {
			if taker := p.owner[j]; room[taker] > 0 {
				room[taker] -= int64(given / 2)
				e.taker[k] = taker
				break
			}
			to := wrap(j+max(1, int(skip[j])), n)
			skip[j] = uint16(min(max(1, int(skip[j]))+int(skip[to]), n, 1<<16-1))
			j = to
		}
	}
}

func wrap(j, n int) int {
	if j >= n {
		return j - n
	}
	return j
}

// owner returns whose a place is of which point k is the next.
func (e *evening) owner(p points, k int, place uint64) int32 {
	owner := p.owner[k]
	if e.cut == nil || e.cut[owner] == 0 {
		return owner
	}
	before := p.place[(k+p.len()-1)%p.len()]
	if given, _ := bits.Mul64(p.place[k]-before, e.cut[owner]); place-before <= given {
		return e.taker[k]
	}
	return owner
}
