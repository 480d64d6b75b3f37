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
	own := arcs(p, len(weights))
	e := evening{cut: make([]uint64, len(weights)), taker: make([]int32, p.len())}
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

// arcs returns what each owner's arcs come to.
func arcs(p points, owners int) []uint64 {
	own := make([]uint64, owners)
	before := p.place[p.len()-1]
	for k, place := range p.place {
		own[p.owner[k]] += place - before
		before = place
	}
	return own
}

// deal finds the takers. What is given of one arc goes to one of them, who lacks at least half of it: so that nobody is far
// beyond its share afterwards.
func (e *evening) deal(p points, room []int64) {
	n := p.len()
	// ahead is how far it is, from the first point on, to the next whose owner has room. It never turns back: rooms only
	// shrink, and whoever is passed over has more points.
	ahead, at := 0, 0
	before := p.place[n-1]
	for k, place := range p.place {
		arc := place - before
		before = place
		owner := p.owner[k]
		cut := e.cut[owner]
		if cut == 0 {
			continue
		}
		if ahead <= k {
			ahead, at = k+1, wrap(k+1, n)
		}
		given, _ := bits.Mul64(arc, cut)
		for ahead < k+n && room[p.owner[at]] < int64(given/4) {
			ahead, at = ahead+1, wrap(at+1, n)
		}
		e.taker[k] = owner
		if ahead < k+n {
			taker := p.owner[at]
			room[taker] -= int64(given / 2)
			e.taker[k] = taker
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
