package answer

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

// topicsOf says which versions encode a topic alike: the first version of each family stands for all of it. v5 and v6
// differ in an error code only, v10 brought topic ids and v12 made names nullable, which none here is.
var topicsOf = [14]int16{0, 1, 1, 1, 1, 5, 6, 7, 8, 9, 10, 10, 10, 10}

// topics is every topic of a snapshot as one family of versions encodes it, in pages of whole topics. A snapshot in which
// little has changed shares the pages of the one before it.
type topics struct {
	pages []page
	size  int
	// dead marks topics that v0 says differently: it filters replicas on dead brokers and reports error 9, so a broker is
	// asked. It is nil in other versions and while no replica is missing.
	dead map[int32]struct{}
}

type page struct {
	bytes []byte
	ends  []uint32 // where each of its topics ends
}

// pageTopics is how many topics a page holds: few enough that one changed topic makes little work, enough that an answer of
// 10,000 topics is some hundreds of parts.
const pageTopics = 32

// topic returns the bytes of topic i.
func (ts *topics) topic(i int32) []byte {
	p := &ts.pages[i/pageTopics]
	at := i % pageTopics
	from := uint32(0)
	if at > 0 {
		from = p.ends[at-1]
	}
	return p.bytes[from:p.ends[at]]
}

// encodeTopics encodes the topics of snap. Pages whose topics are all as they were in prev, which is old's encoding, are
// shared with it.
func encodeTopics(snap *snapshot.Snapshot, family int16, old *snapshot.Snapshot, prev *topics) *topics {
	ts := &topics{pages: make([]page, 0, (len(snap.Topics)+pageTopics-1)/pageTopics)}
	e := newTopicEncoder(family)
	brokers := family != 0 || old != nil && sameBrokers(snap, old) // v0 depends on which brokers live
	for first := 0; first < len(snap.Topics); first += pageTopics {
		last := min(first+pageTopics, len(snap.Topics))
		var p page
		switch {
		case prev == nil || !brokers:
			p = e.encode(snap.Topics[first:last], 0, nil)
		case samePage(snap, old, first, last):
			p = prev.pages[first/pageTopics]
		default:
			size := 0
			if n := first / pageTopics; n < len(prev.pages) {
				size = len(prev.pages[n].bytes)
			}
			p = e.encode(snap.Topics[first:last], size, func(i int) []byte {
				if i += first; i < len(old.Topics) && snapshot.SameTopic(&snap.Topics[i], &old.Topics[i]) {
					return prev.topic(int32(i))
				}
				return nil
			})
		}
		ts.pages = append(ts.pages, p)
		ts.size += len(p.bytes)
		if family == 0 {
			ts.markDead(snap, first, last)
		}
	}
	return ts
}

// samePage says whether the topics from first to last are the very ones of old: a refresh keeps what has not changed.
func samePage(snap, old *snapshot.Snapshot, first, last int) bool {
	if min(first+pageTopics, len(old.Topics)) != last {
		return false
	}
	for i := first; i < last; i++ {
		if !snapshot.SameTopic(&snap.Topics[i], &old.Topics[i]) {
			return false
		}
	}
	return true
}

func sameBrokers(a, b *snapshot.Snapshot) bool {
	if len(a.Brokers) != len(b.Brokers) {
		return false
	}
	for i := range a.Brokers {
		if a.Brokers[i].NodeID != b.Brokers[i].NodeID {
			return false
		}
	}
	return true
}

func (ts *topics) markDead(snap *snapshot.Snapshot, first, last int) {
	for i := first; i < last; i++ {
		if !hasDeadReplica(snap, snap.Topics[i].Partitions) {
			continue
		}
		if ts.dead == nil {
			ts.dead = map[int32]struct{}{}
		}
		ts.dead[int32(i)] = struct{}{}
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

// encode encodes topics one after the other. had, if any, returns the bytes of those that are encoded already; all together
// they will probably be of that size.
func (e *topicEncoder) encode(ts []kmsg.MetadataResponseTopic, size int, had func(i int) []byte) page {
	ends := make([]uint32, 0, len(ts))
	all := e.page[:0]
	if size > 0 {
		all = make([]byte, 0, size)
	}
	for i := range ts {
		if had != nil {
			if b := had(i); b != nil {
				all = append(all, b...)
				ends = append(ends, uint32(len(all)))
				continue
			}
		}
		e.one[0] = ts[i]
		if e.resp.Version < 6 {
			e.one[0].Partitions = withoutListenerError(e.one[0].Partitions)
		}
		e.buf = e.resp.AppendTo(e.buf[:0])
		all = append(all, e.buf[e.before:len(e.buf)-e.after]...)
		ends = append(ends, uint32(len(all)))
	}
	if size > 0 && len(all) == size {
		return page{all, ends}
	}
	e.page = all
	return page{append(make([]byte, 0, len(all)), all...), ends} // exact: it stays for long
}

// withoutListenerError says LEADER_NOT_AVAILABLE where newer versions say LISTENER_NOT_FOUND (KafkaApis: v6 brought it).
func withoutListenerError(ps []kmsg.MetadataResponseTopicPartition) []kmsg.MetadataResponseTopicPartition {
	for i := range ps {
		if ps[i].ErrorCode != kerr.ListenerNotFound.Code {
			continue
		}
		ps = append([]kmsg.MetadataResponseTopicPartition(nil), ps...)
		for j := range ps {
			if ps[j].ErrorCode == kerr.ListenerNotFound.Code {
				ps[j].ErrorCode = kerr.LeaderNotAvailable.Code
			}
		}
		break
	}
	return ps
}

func hasDeadReplica(snap *snapshot.Snapshot, ps []kmsg.MetadataResponseTopicPartition) bool {
	for i := range ps {
		for _, ids := range [][]int32{ps[i].Replicas, ps[i].ISR} {
			for _, id := range ids {
				if snap.Broker(id) == nil {
					return true
				}
			}
		}
	}
	return false
}
