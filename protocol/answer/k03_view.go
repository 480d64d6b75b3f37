package answer

import (
	"encoding/binary"

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
	topics  *topics
	tail    []byte // cluster operations (v8-10), error code (v13), tags (v9+)

	controller bool // v1+ has a controller id
	flexible   bool
}

// tailBytes is how many bytes follow the topics.
func tailBytes(version int16) (n int) {
	if version >= 8 && version <= 10 {
		n += 4
	}
	if version >= 9 {
		n++
	}
	if version >= 13 {
		n += 2
	}
	return n
}

// newView encodes everything but the topics, by letting kmsg encode answers with no broker and with one, and cutting out
// what differs.
func newView(snap *snapshot.Snapshot, version int16, ts *topics) *view {
	v := &view{flexible: version >= 9, controller: version >= 1, topics: ts}
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version, resp.ClusterID, resp.ControllerID = version, &snap.ClusterID, snap.ControllerID
	throttle, count, last := 0, 4, tailBytes(version)
	if version >= 3 {
		throttle = 4
	}
	if v.flexible {
		count = 1
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
	var b []byte
	for i := range snap.Brokers {
		resp.Brokers = snap.Brokers[i : i+1]
		b = resp.AppendTo(b[:0])
		v.brokers = append(v.brokers, b[throttle+count:len(b)-len(rest)]...)
		v.boff = append(v.boff, uint32(len(v.brokers)))
	}
	return v
}

// sameHead says whether the views of two snapshots differ in topics only.
func sameHead(a, b *snapshot.Snapshot) bool {
	return a.ClusterID == b.ClusterID && snapshot.Shared(a.Brokers, b.Brokers)
}

// with is v with other topics.
func (v *view) with(ts *topics) *view {
	w := *v
	w.topics = ts
	return &w
}

// appendCount appends the length of an array.
func appendCount(dst []byte, n int, compact bool) []byte {
	if compact {
		return binary.AppendUvarint(dst, uint64(n)+1)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(n))
}
