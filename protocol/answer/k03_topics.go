package answer

import (
	"bytes"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

// topicsOf says which versions encode a topic alike: the first version of each family stands for all of it. v5 and v6
// differ in an error code only, v10 brought topic ids and v12 made names nullable, which none here is.
var topicsOf = [14]int16{0, 1, 1, 1, 1, 5, 6, 7, 8, 9, 10, 10, 10, 10}

// ownFamily is the family in which a snapshot keeps its topics: its pages are served as they are.
const ownFamily = 10

// topics is every topic of a snapshot as one family of versions encodes it.
type topics struct {
	pages []snapshot.Page
	size  int
	// dead marks topics that v0 says differently: it filters replicas on dead brokers and reports error 9, so a broker is
	// asked. It is nil in other versions and while no replica is missing.
	dead map[int32]struct{}
}

// topic returns the bytes of topic i.
func (ts *topics) topic(i int32) []byte {
	return ts.pages[i/snapshot.PageTopics].Topic(int(i % snapshot.PageTopics))
}

// encodeTopics encodes the topics of snap. Of prev, which is old's encoding, it shares the pages that snap shares with old,
// and copies the topics that are alike.
func encodeTopics(snap *snapshot.Snapshot, family int16, old *snapshot.Snapshot, prev *topics) *topics {
	ts := &topics{}
	if family == ownFamily {
		ts.pages = snap.Pages
	} else {
		ts.pages = make([]snapshot.Page, len(snap.Pages))
		e := newTopicEncoder(family)
		alike := had{old: old, prev: prev}
		for n := range snap.Pages {
			first := n * snapshot.PageTopics
			last := min(first+snapshot.PageTopics, len(snap.Topics))
			if prev == nil || n >= len(old.Pages) {
				ts.pages[n] = e.encode(snap.Topics[first:last], &alike)
				continue
			}
			if snap.Pages[n].Same(&old.Pages[n]) {
				ts.pages[n] = prev.pages[n]
				continue
			}
			was := old.Topics[first:min(first+snapshot.PageTopics, len(old.Topics))]
			p, ok := e.patch(prev.pages[n], was, snap.Topics[first:last])
			if !ok {
				p = e.encode(snap.Topics[first:last], &alike)
			}
			ts.pages[n] = p
		}
	}
	for n := range ts.pages {
		ts.size += len(ts.pages[n].Bytes)
	}
	if family == 0 {
		ts.markDead(snap, old, prev)
	}
	return ts
}

// had looks topics up in an older encoding, in ascending order.
type had struct {
	old  *snapshot.Snapshot
	prev *topics
	at   int
}

// find returns the bytes of a topic that is in the older encoding as it is now, else nil.
func (h *had) find(t *snapshot.Topic) []byte {
	if h.prev == nil {
		return nil
	}
	for h.at < len(h.old.Topics) && h.old.Topics[h.at].Name < t.Name {
		h.at++
	}
	if h.at == len(h.old.Topics) || !bytes.Equal(h.old.Topics[h.at].Raw(), t.Raw()) {
		return nil
	}
	return h.prev.topic(int32(h.at))
}

func sameBrokers(a, b *snapshot.Snapshot) bool {
	return slices.EqualFunc(a.Brokers, b.Brokers, func(a, b kmsg.MetadataResponseBroker) bool { return a.NodeID == b.NodeID })
}

// markDead finds the topics with a replica on a broker that is not listed.
func (ts *topics) markDead(snap, old *snapshot.Snapshot, prev *topics) {
	known := prev != nil && sameBrokers(snap, old)
	for i := range snap.Topics {
		n := i / snapshot.PageTopics
		var dead bool
		if known && n < len(old.Pages) && snap.Pages[n].Same(&old.Pages[n]) {
			_, dead = prev.dead[int32(i)]
		} else {
			dead = hasDeadReplica(snap, &snap.Topics[i])
		}
		if dead {
			if ts.dead == nil {
				ts.dead = map[int32]struct{}{}
			}
			ts.dead[int32(i)] = struct{}{}
		}
	}
}

// topicEncoder has kmsg encode one topic at a time: in an answer with just that topic it stands between the first before
// bytes and the last after ones.
type topicEncoder struct {
	resp          *kmsg.MetadataResponse
	one           []kmsg.MetadataResponseTopic
	before, after int
	buf, page     []byte
}

func newTopicEncoder(version int16) *topicEncoder {
	e := &topicEncoder{resp: kmsg.NewPtrMetadataResponse(), one: make([]kmsg.MetadataResponseTopic, 1)}
	e.resp.Version = version
	e.after = tailBytes(version)
	e.before = len(e.resp.AppendTo(nil)) - e.after
	e.resp.Topics = e.one
	return e
}

// encode encodes topics one after the other; what was encoded before is copied.
func (e *topicEncoder) encode(ts []snapshot.Topic, alike *had) snapshot.Page {
	ends := make([]uint32, 0, len(ts))
	e.page = e.page[:0]
	for i := range ts {
		if b := alike.find(&ts[i]); b != nil {
			e.page = append(e.page, b...)
		} else {
			e.page = append(e.page, e.topic(&ts[i])...)
		}
		ends = append(ends, uint32(len(e.page)))
	}
	return snapshot.Page{Bytes: append(make([]byte, 0, len(e.page)), e.page...), Ends: ends} // exact: it stays for long
}

// topic encodes one topic; the bytes are good until the next.
func (e *topicEncoder) topic(t *snapshot.Topic) []byte {
	t.Decode(&e.one[0])
	if e.resp.Version < 6 {
		withoutListenerError(e.one[0].Partitions)
	}
	e.buf = e.resp.AppendTo(e.buf[:0])
	return e.buf[e.before : len(e.buf)-e.after]
}

// patch makes a page of one whose topics were old: a copy, written over where topics have changed. That only works while
// each of them is as large as it was, as a new leader or epoch leaves it.
func (e *topicEncoder) patch(was snapshot.Page, old, ts []snapshot.Topic) (p snapshot.Page, ok bool) {
	if len(old) != len(ts) {
		return p, false
	}
	p = was
	for i := range ts {
		if bytes.Equal(old[i].Raw(), ts[i].Raw()) {
			continue
		}
		b := e.topic(&ts[i])
		if len(b) != len(p.Topic(i)) {
			return p, false
		}
		if p.Same(&was) {
			p.Bytes = append([]byte(nil), was.Bytes...)
		}
		copy(p.Topic(i), b)
	}
	return p, true
}

// withoutListenerError says LEADER_NOT_AVAILABLE where newer versions say LISTENER_NOT_FOUND (KafkaApis: v6 brought it).
func withoutListenerError(ps []kmsg.MetadataResponseTopicPartition) {
	for i := range ps {
		if ps[i].ErrorCode == kerr.ListenerNotFound.Code {
			ps[i].ErrorCode = kerr.LeaderNotAvailable.Code
		}
	}
}

func hasDeadReplica(snap *snapshot.Snapshot, t *snapshot.Topic) bool {
	for p := range t.All {
		for _, ids := range [...]snapshot.NodeIDs{p.Replicas, p.ISR} {
			for i := range ids.Len() {
				if snap.Broker(ids.At(i)) == nil {
					return true
				}
			}
		}
	}
	return false
}
