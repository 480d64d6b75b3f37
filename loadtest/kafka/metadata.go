package kafka

import "fmt"

// MaxMetadata is the newest Metadata version that this package knows.
const MaxMetadata = 13

// Metadata is what an answer to a Metadata request says. Fields that a version lacks hold the value a client assumes for
// them. Byte slices point into the decoded body.
type Metadata struct {
	ThrottleMillis int32
	Brokers        []Broker
	ClusterID      []byte // nil: null, or v0 and v1, which have none
	ControllerID   int32  // -1: v0, which has none, or unknown
	Topics         []Topic
	ErrorCode      int16 // v13
}

// Broker is one advertised broker.
type Broker struct {
	NodeID int32
	Host   []byte
	Port   int32
	Rack   []byte // nil: null, or v0
}

// Topic is one topic of the answer with its partitions.
type Topic struct {
	ErrorCode  int16
	Name       []byte   // nil: null (v12, unknown id)
	ID         [16]byte // v10
	Internal   bool
	Partitions []Partition
}

// Partition is one partition. Replica lists are validated and skipped.
type Partition struct {
	ErrorCode   int16
	Index       int32
	Leader      int32
	LeaderEpoch int32 // -1: before v7
}

// Decode reads the body that follows the response header of the given version. It reuses the slices that m holds. The
// whole body must be consumed. Errors wrap ErrShort or ErrMalformed.
func (m *Metadata) Decode(version int16, body []byte) error {
	if version < 0 || version > MaxMetadata {
		return fmt.Errorf("metadata v%d: known are 0 to %d", version, MaxMetadata)
	}
	flex := version >= 9
	r := reader{b: body}
	m.ThrottleMillis, m.ClusterID, m.ControllerID, m.ErrorCode = 0, nil, -1, 0
	if version >= 3 {
		m.ThrottleMillis = r.int32()
	}
	m.Brokers = m.Brokers[:0]
	for n := r.count(flex, 10); n > 0 && r.err == nil; n-- {
		b := Broker{NodeID: r.int32(), Host: r.string(flex), Port: r.int32()}
		if version >= 1 {
			b.Rack, _ = r.nullable(flex)
		}
		r.skipTags(flex)
		m.Brokers = append(m.Brokers, b)
	}
	if version >= 2 {
		m.ClusterID, _ = r.nullable(flex)
	}
	if version >= 1 {
		m.ControllerID = r.int32()
	}
	n := r.count(flex, 8)
	m.Topics = grow(m.Topics, n)
	for i := range m.Topics {
		m.Topics[i].decode(&r, version, flex)
		if r.err != nil {
			break
		}
	}
	if version >= 8 && version <= 10 {
		r.int32() // cluster authorized operations
	}
	if version >= 13 {
		m.ErrorCode = r.int16()
	}
	r.skipTags(flex)
	if err := r.end(); err != nil {
		return fmt.Errorf("metadata v%d: %w", version, err)
	}
	return nil
}

func (t *Topic) decode(r *reader, version int16, flex bool) {
	t.ErrorCode, t.ID, t.Internal = r.int16(), [16]byte{}, false
	if version >= 12 {
		t.Name, _ = r.nullable(flex)
	} else {
		t.Name = r.string(flex)
	}
	if version >= 10 {
		copy(t.ID[:], r.take(16))
	}
	if version >= 1 {
		t.Internal = r.bool()
	}
	t.Partitions = t.Partitions[:0]
	for n := r.count(flex, 18); n > 0 && r.err == nil; n-- {
		p := Partition{ErrorCode: r.int16(), Index: r.int32(), Leader: r.int32(), LeaderEpoch: -1}
		if version >= 7 {
			p.LeaderEpoch = r.int32()
		}
		r.take(4 * r.count(flex, 4)) // replicas
		r.take(4 * r.count(flex, 4)) // in-sync replicas
		if version >= 5 {
			r.take(4 * r.count(flex, 4)) // offline replicas
		}
		r.skipTags(flex)
		t.Partitions = append(t.Partitions, p)
	}
	if version >= 8 {
		r.int32() // topic authorized operations
	}
	r.skipTags(flex)
}

// grow returns s with length n, keeping the elements' own slices for reuse.
func grow(s []Topic, n int) []Topic {
	if n <= cap(s) {
		return s[:n]
	}
	return append(s[:cap(s)], make([]Topic, n-cap(s))...)
}
