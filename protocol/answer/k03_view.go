package answer

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

// view is one snapshot as one version of Metadata encodes it, in the pieces that answers are put together from:
//
//	head | brokers (any rotation) | mid | controller id (v1+) | topics count | topics... | tail
type view struct {
	head    []byte // header tags (v9+), throttle time (v3+), number of brokers
	brokers []byte
	boff    []uint32 // where broker i starts in brokers; one more than brokers
	mid     []byte   // cluster id (v2+)
	topics  []byte
	toff    []uint64 // where topic i starts in topics; one more than topics
	tail    []byte   // cluster operations (v8-10), error code (v13), tags (v9+)

	controller bool // v1+ has a controller id
	flexible   bool
	// dead marks topics that v0 says differently: it filters replicas on dead brokers and reports error 9, so a broker is
	// asked. It is nil in other versions and while no replica is missing.
	dead map[int32]struct{}
}

// newView encodes snap by letting kmsg encode answers with no broker and topic, one broker, one topic, and cutting out
// what differs.
func newView(snap *snapshot.Snapshot, version int16) *view {
	v := &view{flexible: version >= 9, controller: version >= 1}
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version, resp.ClusterID, resp.ControllerID = version, &snap.ClusterID, snap.ControllerID
	throttle, count, last := 0, 4, 0
	if version >= 3 {
		throttle = 4
	}
	if version >= 8 && version <= 10 {
		last += 4
	}
	if version >= 13 {
		last += 2
	}
	if v.flexible {
		count, last = 1, last+1
		v.head = append(v.head, 0)
	}
	empty := resp.AppendTo(nil)
	v.head = append(v.head, empty[:throttle]...)
	v.head = appendCount(v.head, len(snap.Brokers), v.flexible)
	rest := empty[throttle+count:] // mid, controller id, number of topics, tail
	v.tail = rest[len(rest)-last:]
	v.mid = rest[:len(rest)-last-count]
	if v.controller {
		v.mid = v.mid[:len(v.mid)-4]
	}

	v.boff = append(v.boff, 0)
	for i := range snap.Brokers {
		resp.Brokers = snap.Brokers[i : i+1]
		b := resp.AppendTo(nil)
		v.brokers = append(v.brokers, b[throttle+count:len(b)-len(rest)]...)
		v.boff = append(v.boff, uint32(len(v.brokers)))
	}
	resp.Brokers = nil
	v.addTopics(snap, resp, len(empty)-last, last)
	return v
}

// addTopics encodes each topic: in an answer with just that topic it stands between the first `before` bytes and the last
// `after` ones.
func (v *view) addTopics(snap *snapshot.Snapshot, resp *kmsg.MetadataResponse, before, after int) {
	v.toff = append(make([]uint64, 0, len(snap.Topics)+1), 0)
	one := make([]kmsg.MetadataResponseTopic, 1)
	var b []byte
	for i := range snap.Topics {
		one[0] = snap.Topics[i]
		if resp.Version < 6 {
			one[0].Partitions = withoutListenerError(one[0].Partitions)
		}
		if resp.Version == 0 && hasDeadReplica(snap, one[0].Partitions) {
			if v.dead == nil {
				v.dead = map[int32]struct{}{}
			}
			v.dead[int32(i)] = struct{}{}
		}
		resp.Topics = one
		b = resp.AppendTo(b[:0])
		v.topics = append(v.topics, b[before:len(b)-after]...)
		v.toff = append(v.toff, uint64(len(v.topics)))
	}
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

// topic returns the bytes of topic i.
func (v *view) topic(i int32) []byte { return v.topics[v.toff[i]:v.toff[i+1]] }

// appendCount appends the length of an array.
func appendCount(dst []byte, n int, compact bool) []byte {
	if compact {
		return binary.AppendUvarint(dst, uint64(n)+1)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(n))
}
