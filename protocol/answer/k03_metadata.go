package answer

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/kvip/kvip/protocol/wire"
)

// Metadata (key 3), v0-13. Answered here: all topics, no topics, and topics that the snapshot knows, by name or by id.
// A broker is asked for everything else: unknown names and ids, names together with ids, authorized operations
// (clients.md R13), and v0 while a replica's broker is missing.

// metadata has what all versions share, and each version's view once somebody has asked for it.
type metadata struct {
	names map[string]int32
	ids   map[[16]byte]int32
	views [14]atomic.Pointer[view]
	heat  [14]atomic.Int32
}

// heat is for how many snapshots in a row a version is encoded ahead after it was last asked for.
const heat = 8

func (m *metadata) init(s *Set, prev *Set) {
	topics := s.in.Snapshot.Topics
	m.names = make(map[string]int32, len(topics))
	m.ids = make(map[[16]byte]int32, len(topics))
	for i := range topics {
		m.names[*topics[i].Topic] = int32(i)
		if topics[i].TopicID != ([16]byte{}) {
			m.ids[topics[i].TopicID] = int32(i)
		}
	}
	if prev == nil {
		return
	}
	for v := range m.views {
		if h := prev.metadata.heat[v].Load(); h > 0 {
			m.heat[v].Store(h - 1)
			m.views[v].Store(newView(s.in.Snapshot, int16(v)))
		}
	}
}

func (m *metadata) view(s *Set, version int16) *view {
	if m.heat[version].Load() != heat {
		m.heat[version].Store(heat)
	}
	if v := m.views[version].Load(); v != nil {
		return v
	}
	v := newView(s.in.Snapshot, version)
	if !m.views[version].CompareAndSwap(nil, v) {
		v = m.views[version].Load()
	}
	return v
}

func answerMetadata(s *Set, out *Out, q *Request) (Verdict, wire.Fault) {
	req, fault := wire.ParseMetadata(q.Body, q.Version, q.TagLimit)
	if fault != wire.OK {
		return Close, fault
	}
	if req.ClusterOps || req.TopicOps {
		return Forward, wire.OK
	}
	v := s.metadata.view(s, q.Version)
	if req.All {
		if len(v.dead) > 0 {
			return Forward, wire.OK
		}
		out.metadata(s, v, q, len(v.toff)-1, len(v.topics))
		out.Refer(v.topics)
		out.Copy(v.tail)
		return Answered, wire.OK
	}
	size, ok := out.find(s, v, &req, q.Version >= 12)
	if !ok {
		return Forward, wire.OK
	}
	out.metadata(s, v, q, len(out.topics), size)
	for _, i := range out.topics {
		out.Refer(v.topic(i))
	}
	out.Copy(v.tail)
	return Answered, wire.OK
}

// find collects the topics that req names, each once, and the size of their bytes; false when a broker has to be asked.
// Ids are taken from v12 on: before, a broker refuses them.
func (o *Out) find(s *Set, v *view, req *wire.MetadataRequest, idsTaken bool) (size int, ok bool) {
	m := &s.metadata
	o.topics = o.topics[:0]
	if n := len(m.names); len(o.seen) < n {
		o.seen, o.stamp = make([]uint32, n+n/4), 0
	}
	if o.stamp++; o.stamp == 0 {
		clear(o.seen)
		o.stamp = 1
	}
	named, byID := false, false
	for it := req.Topics(); ; {
		t, more := it.Next()
		if !more {
			return size, !(named && byID)
		}
		var i int32
		if t.ID == ([16]byte{}) {
			i, ok = m.names[string(t.Name)]
			named = true
		} else {
			i, ok = m.ids[t.ID]
			byID = true
			ok = ok && t.Name == nil && idsTaken
		}
		if !ok {
			return 0, false
		}
		if _, dead := v.dead[i]; dead {
			return 0, false
		}
		if o.seen[i] != o.stamp {
			o.seen[i] = o.stamp
			o.topics = append(o.topics, i)
			size += int(v.toff[i+1] - v.toff[i])
		}
	}
}

// metadata writes everything before the topics' bytes.
func (o *Out) metadata(s *Set, v *view, q *Request, topics, size int) {
	size += 4 + len(v.head) + len(v.brokers) + len(v.mid) + len(v.tail)
	if v.controller {
		size += 4
	}
	var count [binary.MaxVarintLen64]byte
	n := appendCount(count[:0], topics, v.flexible)
	size += len(n)

	o.int32(int32(size))
	o.int32(q.CorrelationID)
	o.Copy(v.head)
	at := v.boff[s.rotation(q.Client)]
	o.Refer(v.brokers[at:])
	o.Refer(v.brokers[:at])
	o.Copy(v.mid)
	if v.controller {
		id := s.in.Snapshot.ControllerID
		if s.in.Snapshot.KRaft {
			bs := s.in.Snapshot.Brokers
			id = bs[o.rand()%uint64(len(bs))].NodeID
		}
		o.int32(id)
	}
	o.Copy(n)
}
