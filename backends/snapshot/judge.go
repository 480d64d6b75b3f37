package snapshot

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxDoubts bounds what is remembered of a candidate that differs in everything.
const maxDoubts = 4096

// Doubt is one way in which a candidate looks older or smaller than the view so far. It is comparable: two brokers whose
// answers give rise to the same doubt agree.
type Doubt struct {
	Reason Reason
	// Topic and Index say what it is about: a partition, a topic (Index -1), or a node id (no topic).
	Topic string
	Index int32
}

func (d Doubt) String() string {
	switch {
	case d.Topic == "":
		return fmt.Sprintf("%s: node id %d", d.Reason, d.Index)
	case d.Index < 0:
		return fmt.Sprintf("%s: topic %q", d.Reason, d.Topic)
	}
	return fmt.Sprintf("%s: topic %q partition %d", d.Reason, d.Topic, d.Index)
}

// Doubts compares a candidate with the view so far and returns what speaks against it, the gravest first; none when there
// is no view yet. retired are topic ids that the pool knows to be over.
func Doubts(cur *Snapshot, cand *Candidate, retired *Retired) []Doubt {
	if cur == nil {
		return nil
	}
	var ds []Doubt
	add := func(r Reason, topic string, index int32) {
		if len(ds) < maxDoubts {
			ds = append(ds, Doubt{r, topic, index})
		}
	}
	for i := range cur.Brokers {
		b := &cur.Brokers[i]
		switch now := cand.Snapshot.Broker(b.NodeID); {
		case now == nil:
			add(Shrunk, "", b.NodeID)
		case now.Host != b.Host || now.Port != b.Port:
			add(Moved, "", b.NodeID)
		}
	}
	walk(cur.Topics, cand.Snapshot.Topics, func(was, is *Topic) {
		switch {
		case is == nil:
			if _, errored := slices.BinarySearch(cand.Errored, was.Name); errored {
				add(HalfBuilt, was.Name, -1)
			} else {
				add(TopicGone, was.Name, -1)
			}
		case was != nil && bytes.Equal(was.raw, is.raw): // then its id is not over either
		case retired.Has(is.ID):
			add(TopicIDBack, is.Name, -1)
		case was == nil:
		case was.ID != is.ID && was.hasID() && is.hasID():
			add(TopicRecreated, is.Name, -1)
		default:
			doubtPartitions(was, is, add)
		}
	})
	slices.SortStableFunc(ds, func(a, b Doubt) int {
		return cmp.Compare(slices.Index(Reasons, a.Reason), slices.Index(Reasons, b.Reason))
	})
	return ds
}

// doubtPartitions compares two views of one topic. A leader epoch of -1 is unknown (Metadata before v7) and proves
// nothing.
func doubtPartitions(was, is *Topic, add func(Reason, string, int32)) {
	if is.Partitions < was.Partitions {
		add(HalfBuilt, is.Name, -1)
	}
	_, w := was.cursor()
	_, n := is.cursor()
	for more := n.next(); w.next(); {
		for more && n.p.Index < w.p.Index {
			more = n.next()
		}
		if !more {
			return
		}
		if n.p.Index == w.p.Index && n.p.LeaderEpoch >= 0 && n.p.LeaderEpoch < w.p.LeaderEpoch {
			add(LowerEpoch, is.Name, n.p.Index)
		}
	}
}

// walk calls f with each topic of two ascending lists, nil where one list lacks it.
func walk(a, b []Topic, f func(a, b *Topic)) {
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		c := 0
		switch {
		case i == len(a):
			c = 1
		case j == len(b):
			c = -1
		default:
			c = strings.Compare(a[i].Name, b[j].Name)
		}
		switch {
		case c < 0:
			f(&a[i], nil)
			i++
		case c > 0:
			f(nil, &b[j])
			j++
		default:
			f(&a[i], &b[j])
			i++
			j++
		}
	}
}

func (t *Topic) hasID() bool { return t.ID != [16]byte{} }

// Agrees says whether a broker whose answer gave rise to theirs backs a candidate with these doubts: it shares every one
// of them.
func Agrees(doubts, theirs []Doubt) bool {
	has := make(map[Doubt]bool, len(theirs))
	for _, d := range theirs {
		has[d] = true
	}
	for _, d := range doubts {
		if !has[d] {
			return false
		}
	}
	return true
}

// Retired remembers the ids of topics that were deleted or recreated, the last maxRetired of them: an answer that has one
// again is older than the view. The zero value is ready; it is not safe for concurrent writes.
type Retired struct {
	ids  map[[16]byte]struct{}
	ring [][16]byte
	next int
}

const maxRetired = 4096

// Has says whether an id is over. A nil Retired knows none.
func (r *Retired) Has(id [16]byte) bool {
	if r == nil {
		return false
	}
	_, ok := r.ids[id]
	return ok
}

// Replace notes that next has taken the place of cur: the ids that only cur has are over, those of next are not (any
// more).
func (r *Retired) Replace(cur, next *Snapshot) {
	if cur == nil || cur.index == next.index {
		return // the same topics
	}
	walk(cur.Topics, next.Topics, func(was, is *Topic) {
		if is != nil {
			delete(r.ids, is.ID)
		}
		if was != nil && was.hasID() && (is == nil || is.hasID() && is.ID != was.ID) {
			if _, still := next.FindID(was.ID); !still { // under another name
				r.add(was.ID)
			}
		}
	})
}

func (r *Retired) add(id [16]byte) {
	if r.ids == nil {
		r.ids = make(map[[16]byte]struct{})
	}
	if _, ok := r.ids[id]; ok {
		return
	}
	if len(r.ring) < maxRetired {
		r.ring = append(r.ring, id)
	} else {
		delete(r.ids, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % maxRetired
	}
	r.ids[id] = struct{}{}
}
