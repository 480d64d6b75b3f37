package answer

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/wire"
)

// Metadata (key 3), v0-13. Answered here: all topics, no topics, and topics that the snapshot knows, by name or by id.
// A broker is asked for everything else: unknown names and ids, names together with ids, authorized operations
// (clients.md R13), and v0 while a replica's broker is missing.

// metadata has what all versions share, and each version's view once somebody has asked for it.
type metadata struct {
	views [14]atomic.Pointer[view]
	asked [14]atomic.Bool
	// last is when a version was last known to be asked for, and families the topics as families of versions encode them
	// (by the first version of each); both are the writer's: a Set that is published changes only views and asked.
	last     [14]snapshot.Time
	families [14]atomic.Pointer[topics]
	building atomic.Bool
}

// askedFor is for how long a version is encoded ahead after it was last asked for: longer than the five minutes after
// which most clients refresh.
const askedFor = 15 * time.Minute

// inlinePartitions is how many partitions are encoded while a lookup waits, at some 100 ns each; above, the first lookup of
// a version is held until a goroutine has done it.
const inlinePartitions = 5000

func newMetadata(s *Set, prev *Set) *metadata {
	m := &metadata{}
	if prev == nil {
		return m
	}
	now := snapshot.Now()
	for v := range m.views {
		m.last[v] = prev.metadata.last[v]
		if prev.metadata.asked[v].Load() {
			m.last[v] = now
		}
		if m.last[v] != 0 && now.Sub(m.last[v]) < askedFor {
			m.build(s, int16(v), prev)
		}
	}
	return m
}

// build encodes one version, with what prev, if any, has of it.
func (m *metadata) build(s *Set, version int16, prev *Set) *view {
	family := &m.families[topicsOf[version]]
	ts := family.Load()
	if ts == nil {
		var old *snapshot.Snapshot
		var had *topics
		if prev != nil {
			if had = prev.metadata.families[topicsOf[version]].Load(); had != nil {
				old = prev.in.Snapshot
			}
		}
		ts = encodeTopics(s.in.Snapshot, topicsOf[version], old, had)
		if !family.CompareAndSwap(nil, ts) {
			ts = family.Load()
		}
	}
	var v *view
	if prev != nil {
		v = prev.metadata.views[version].Load()
	}
	if v != nil && sameHead(s.in.Snapshot, prev.in.Snapshot) {
		v = v.with(ts)
	} else {
		v = newView(s.in.Snapshot, version, ts)
	}
	m.views[version].Store(v)
	return v
}

// view returns a version's view, or nil while it is being made.
func (m *metadata) view(s *Set, version int16) *view {
	if !m.asked[version].Load() {
		m.asked[version].Store(true)
	}
	if v := m.views[version].Load(); v != nil {
		return v
	}
	if s.in.Snapshot.Partitions <= inlinePartitions || m.families[topicsOf[version]].Load() != nil ||
		topicsOf[version] == ownFamily {
		return m.build(s, version, nil)
	}
	if m.building.CompareAndSwap(false, true) {
		go func() {
			defer m.building.Store(false)
			m.build(s, version, nil)
		}()
	}
	return nil
}

func answerMetadata(s *Set, out *Out, q *Request) (Verdict, wire.Fault) {
	var req wire.MetadataRequest
	if fault := req.Parse(q.Body, q.Version, q.TagLimit); fault != wire.OK {
		return Close, fault
	}
	if req.ClusterOps || req.TopicOps {
		return Forward, wire.OK
	}
	v := s.metadata.view(s, q.Version)
	if v == nil {
		return Later, wire.OK
	}
	if req.All {
		if len(v.topics.dead) > 0 {
			return Forward, wire.OK
		}
		out.metadata(s, v, q, len(s.in.Snapshot.Topics), v.topics.size)
		out.referPages(v.topics.pages, v.topics.size)
		out.Copy(v.tail)
		return Answered, wire.OK
	}
	size, ok := out.find(s, v, &req, q.Version >= 12)
	if !ok {
		return Forward, wire.OK
	}
	out.metadata(s, v, q, len(out.topics), size)
	for _, i := range out.topics {
		out.Refer(v.topics.topic(i))
	}
	out.Copy(v.tail)
	return Answered, wire.OK
}

// find collects the topics that req names, each once, and the size of their bytes; false when a broker has to be asked.
// Ids are taken from v12 on: before, a broker refuses them.
func (o *Out) find(s *Set, v *view, req *wire.MetadataRequest, idsTaken bool) (size int, ok bool) {
	snap := s.in.Snapshot
	o.topics = o.topics[:0]
	if n := len(snap.Topics); len(o.seen) < n {
		o.seen, o.stamp = make([]uint32, n+n/4), 0
	}
	if o.stamp++; o.stamp == 0 {
		clear(o.seen)
		o.stamp = 1
	}
	named, byID := false, false
	var t wire.MetadataTopic
	for it := req.Topics(); ; {
		if !it.Next(&t) {
			return size, !(named && byID)
		}
		var i int32
		if t.ID == ([16]byte{}) {
			i, ok = snap.Find(t.Name)
			named = true
		} else {
			i, ok = snap.FindID(t.ID)
			byID = true
			ok = ok && t.Name == nil && idsTaken
		}
		if !ok {
			return 0, false
		}
		if _, dead := v.topics.dead[i]; dead {
			return 0, false
		}
		if o.seen[i] != o.stamp {
			o.seen[i] = o.stamp
			o.topics = append(o.topics, i)
			size += len(v.topics.topic(i))
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
