package policy

import (
	"cmp"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
)

const (
	// pointsPerWeight is how many points on the ring a member has for each unit of weight.
	pointsPerWeight = 160
	// heaviest is the largest weight that has points for each unit; what is beyond, even.go alone brings about.
	heaviest = 24
	// maxPoints bounds the points of all members: 819 units of weight have all of theirs, which is 34 members of the
	// heaviest weight.
	maxPoints = 1 << 17
)

// ring is consistent hashing: a client gets the member whose point is the first at or after the client's place. The
// points are MD5 of "host:port-vI" for I below 160 times the weight, the first eight bytes taken as a big-endian number.
// 160 points place a member only to some 8% of its share; even.go cuts the arcs so that shares follow weights.
type ring struct {
	members []Member
	base    points
	// slots are the members' indices by what the points call them: their owners stay as they are when members shift.
	slots []int32
	// weights are the owners' as they count, by slot.
	weights []int
	even    evening
	// bucket[p>>shift] is the first point at or after the bucket's start.
	bucket []int32
	shift  uint
}

// points are places on the ring, ascending, whose they are, by slot, and the I of each.
type points struct {
	place  []uint64
	owner  []int32
	number []uint16
}

func (p points) len() int { return len(p.place) }

// same says that two are one in memory.
func (p points) same(q points) bool {
	return p.len() > 0 && p.len() == q.len() && &p.place[0] == &q.place[0]
}

func newRing(members []Member, was Picker) Picker {
	r := &ring{members: members}
	old, _ := was.(*ring)
	if old == nil {
		old = &ring{}
	}
	r.place(old)
	r.weights = make([]int, len(r.slots))
	byMember := weightsOf(members)
	for s, i := range r.slots {
		if i >= 0 {
			r.weights[s] = byMember[i]
		}
	}
	if r.base.same(old.base) && slices.Equal(r.weights, old.weights) {
		r.even, r.bucket, r.shift = old.even, old.bucket, old.shift
		return r
	}
	r.even = newEvening(r.base, r.weights)
	r.index()
	return r
}

// weightsOf are the weights that count: if none is above zero, all are equal.
func weightsOf(members []Member) []int {
	ws := make([]int, len(members))
	any := false
	for i, m := range members {
		ws[i] = max(0, m.Weight)
		any = any || ws[i] > 0
	}
	for i := range ws {
		if !any {
			ws[i] = 1
		}
	}
	return ws
}

// counts are how many points each member has: of its own weight alone, so that one that comes or goes changes nobody
// else's. Only where they would be too many are all scaled down alike, and one more or less makes little difference there.
func counts(members []Member) []int {
	ns := weightsOf(members)
	total := 0
	for i, w := range ns {
		ns[i] = min(w, heaviest) * pointsPerWeight
		total += ns[i]
	}
	if total <= maxPoints {
		return ns
	}
	scale := float64(maxPoints) / float64(total+1)
	for i, n := range ns {
		if n > 0 {
			ns[i] = max(1, int(float64(n)*scale))
		}
	}
	return ns
}

type point struct {
	place  uint64
	owner  int32
	number uint16
}

// place puts all members' points on the ring. Those that old has are taken from it, as a change is of few members at a
// time, and of few points of each where there are many.
func (r *ring) place(old *ring) {
	had := make(map[string]int, len(old.slots))
	hadCounts := make([]int, len(old.slots))
	oldCounts := counts(old.members)
	for s, i := range old.slots {
		if i >= 0 {
			had[old.members[i].Addr] = s
			hadCounts[s] = oldCounts[i]
		}
	}
	r.slots = make([]int32, len(old.slots), len(old.slots)+len(r.members))
	for s := range r.slots {
		r.slots[s] = free
	}
	ns := counts(r.members)
	keep := make([]int32, len(old.slots)) // how many of its first points each of old's slots keeps
	var fresh []point
	var added []int
	total := 0
	for i, m := range r.members {
		total += ns[i]
		s, ok := had[m.Addr]
		if !ok {
			added = append(added, i)
			continue
		}
		r.slots[s] = int32(i)
		keep[s] = int32(min(ns[i], hadCounts[s]))
		fresh = appendPoints(fresh, m.Addr, int32(s), hadCounts[s], ns[i])
	}
	s := 0
	for _, i := range added {
		for s < len(r.slots) && r.slots[s] != free {
			s++
		}
		if s == len(r.slots) {
			r.slots = append(r.slots, free)
		}
		r.slots[s] = int32(i)
		fresh = appendPoints(fresh, r.members[i].Addr, int32(s), 0, ns[i])
	}
	addr := func(slot int32) string { return r.members[r.slots[slot]].Addr }
	slices.SortFunc(fresh, func(a, b point) int {
		if a.place != b.place {
			return cmp.Compare(a.place, b.place)
		}
		return cmp.Compare(addr(a.owner), addr(b.owner))
	})
	r.base = merge(old.base, keep, fresh, total, addr)
}

// free marks a slot without a member.
const free = -1

// merge returns, in order, those of old's points that are kept, and the fresh ones; total is how many that makes. What
// lies between two that come or go is copied in one piece.
func merge(old points, keep []int32, fresh []point, total int, addr func(slot int32) string) points {
	if len(fresh) == 0 && total == old.len() {
		return old
	}
	out := points{make([]uint64, total), make([]int32, total), make([]uint16, total)}
	n, from := 0, 0 // how much of out there is, and from where on old's are to be copied
	copyTo := func(k int) {
		copy(out.place[n:], old.place[from:k])
		copy(out.owner[n:], old.owner[from:k])
		n, from = n+copy(out.number[n:], old.number[from:k]), k
	}
	for k, owner := range old.owner {
		gone := int32(old.number[k]) >= keep[owner]
		if !gone && (len(fresh) == 0 || fresh[0].place > old.place[k]) {
			continue
		}
		copyTo(k)
		if gone {
			from++
			continue
		}
		for len(fresh) > 0 && (fresh[0].place < old.place[k] || fresh[0].place == old.place[k] && addr(fresh[0].owner) < addr(owner)) {
			out.place[n], out.owner[n], out.number[n] = fresh[0].place, fresh[0].owner, fresh[0].number
			n++
			fresh = fresh[1:]
		}
	}
	copyTo(old.len())
	for _, p := range fresh {
		out.place[n], out.owner[n], out.number[n] = p.place, p.owner, p.number
		n++
	}
	return out
}

// appendPoints adds the points of a member from one number on, below another.
func appendPoints(to []point, addr string, owner int32, from, below int) []point {
	if from >= below {
		return to
	}
	name := append([]byte(addr), "-v"...)
	for i := from; i < below; i++ {
		sum := md5.Sum(strconv.AppendInt(name, int64(i), 10))
		to = append(to, point{binary.BigEndian.Uint64(sum[:]), owner, uint16(i)})
	}
	return to
}

// index makes the table by which a search begins near its end.
func (r *ring) index() {
	n := r.base.len()
	if n == 0 {
		return
	}
	const pointsPerBucket = 4
	log := bits.Len(uint(n / pointsPerBucket))
	r.shift = uint(64 - log)
	r.bucket = make([]int32, 1<<log+1)
	next := 0
	for k, place := range r.base.place {
		for b := int(place >> r.shift); next <= b; next++ {
			r.bucket[next] = int32(k)
		}
	}
	for ; next < len(r.bucket); next++ {
		r.bucket[next] = int32(n)
	}
}

// find returns the index of the first point at or after a place.
func (r *ring) find(place uint64) int {
	b := place >> r.shift
	lo, hi := int(r.bucket[b]), int(r.bucket[b+1])
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); r.base.place[mid] < place {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == r.base.len() {
		return 0
	}
	return lo
}

func (r *ring) Pick(client uint64) int {
	if r.base.len() == 0 {
		return -1
	}
	place := address(client)
	k := r.find(place)
	return int(r.slots[r.even.owner(r.base, k, place)])
}

func (r *ring) Explain(client uint64) (int, string) {
	i := r.Pick(client)
	if i < 0 {
		return i, ""
	}
	place := address(client)
	k := r.find(place)
	why := fmt.Sprintf("the client's address is at %016x on the ring, and the next point is %016x", place, r.base.place[k])
	if owner := r.slots[r.base.owner[k]]; owner != int32(i) {
		return i, fmt.Sprintf("%s, of %s, which has more than its share and gives that part of its arc to %s", why, r.members[owner].Addr, r.members[i].Addr)
	}
	return i, fmt.Sprintf("%s, of %s", why, r.members[i].Addr)
}
