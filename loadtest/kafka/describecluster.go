package kafka

import "fmt"

// MaxDescribeCluster is the newest DescribeCluster version that this package knows.
const MaxDescribeCluster = 2

// DescribeClusterRequest returns a whole request frame that asks for the brokers that are not fenced.
func DescribeClusterRequest(version int16, clientID string) []byte {
	w := begin(KeyDescribeCluster, version, clientID)
	w.bool(false) // authorized operations
	if version >= 1 {
		w.raw([]byte{1}) // endpoint type: brokers
	}
	if version >= 2 {
		w.bool(false) // fenced brokers
	}
	w.tags(true)
	return w.finish()
}

// DescribeCluster is what an answer to a DescribeCluster request says. Byte slices point into the decoded body.
type DescribeCluster struct {
	ThrottleMillis int32
	ErrorCode      int16
	ClusterID      []byte
	ControllerID   int32
	Brokers        []Broker
}

// Decode reads the body that follows the response header. It reuses m's slice. Errors wrap ErrShort or ErrMalformed.
func (m *DescribeCluster) Decode(version int16, body []byte) error {
	if version < 0 || version > MaxDescribeCluster {
		return fmt.Errorf("describe cluster v%d: known are 0 to %d", version, MaxDescribeCluster)
	}
	r := reader{b: body}
	m.ThrottleMillis, m.ErrorCode = r.int32(), r.int16()
	r.nullable(true) // error message
	if version >= 1 {
		r.take(1) // endpoint type
	}
	m.ClusterID, m.ControllerID, m.Brokers = r.string(true), r.int32(), m.Brokers[:0]
	for n := r.count(true, 11); n > 0 && r.err == nil; n-- {
		b := Broker{NodeID: r.int32(), Host: r.string(true), Port: r.int32()}
		b.Rack, _ = r.nullable(true)
		if version >= 2 {
			r.bool() // fenced
		}
		r.skipTags(true)
		m.Brokers = append(m.Brokers, b)
	}
	r.int32() // authorized operations
	r.skipTags(true)
	if err := r.end(); err != nil {
		return fmt.Errorf("describe cluster v%d: %w", version, err)
	}
	return nil
}
