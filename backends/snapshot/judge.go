package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
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
	walk(cur.Topics, cand.Snapshot.Topics, func(was, is *kmsg.MetadataResponseTopic) {
		switch {
		case is == nil:
			if _, errored := slices.BinarySearch(cand.Errored, *was.Topic); errored {
				add(HalfBuilt, *was.Topic, -1)
			} else {
				add(TopicGone, *was.Topic, -1)
			}
		case retired.Has(is.TopicID):
			add(TopicIDBack, *is.Topic, -1)
		case was == nil:
		case was.TopicID != is.TopicID && hasID(was) && hasID(is):
			add(TopicRecreated, *is.Topic, -1)
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
func doubtPartitions(was, is *kmsg.MetadataResponseTopic, add func(Reason, string, int32)) {
	if len(is.Partitions) < len(was.Partitions) {
		add(HalfBuilt, *is.Topic, -1)
	}
	j := 0
	for i := range was.Partitions {
		w := &was.Partitions[i]
		for j < len(is.Partitions) && is.Partitions[j].Partition < w.Partition {
			j++
		}
		if j == len(is.Partitions) {
			return
		}
		if n := &is.Partitions[j]; n.Partition == w.Partition && n.LeaderEpoch >= 0 && n.LeaderEpoch < w.LeaderEpoch {
			add(LowerEpoch, *is.Topic, n.Partition)
		}
	}
}

// walk calls f with each topic of two ascending lists, nil where one list lacks it.
func walk(a, b []kmsg.MetadataResponseTopic, f func(a, b *kmsg.MetadataResponseTopic)) {
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		c := 0
		switch {
		case i == len(a):
			c = 1
		case j == len(b):
			c = -1
		default:
			c = strings.Compare(*a[i].Topic, *b[j].Topic)
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

func hasID(t *kmsg.MetadataResponseTopic) bool { return t.TopicID != [16]byte{} }

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
	if cur == nil {
		return
	}
	walk(cur.Topics, next.Topics, func(was, is *kmsg.MetadataResponseTopic) {
		if is != nil {
			delete(r.ids, is.TopicID)
		}
		if was != nil && hasID(was) && (is == nil || hasID(is) && is.TopicID != was.TopicID) {
			r.add(was.TopicID)
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
