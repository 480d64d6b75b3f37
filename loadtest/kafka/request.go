// Package kafka writes the requests that a bootstrapping client sends and reads the answers, with code of its own: a load
// test that shared its codec with the server would not see the codec's faults. Response and request schemas are those of
// Apache Kafka 4.4's message definitions.
package kafka

import "encoding/binary"

// Api keys used by the load test.
const (
	KeyMetadata        = 3
	KeyFindCoordinator = 10
	KeyAPIVersions     = 18
	KeyDescribeCluster = 60
)

// correlationOffset is where every request and response frame with a length in front holds the correlation id:
// in requests after length, key and version, in responses right after the length.
const (
	requestCorrelationOffset  = 4 + 2 + 2
	responseCorrelationOffset = 4
)

// SetCorrelation writes the correlation id into a request frame.
func SetCorrelation(frame []byte, id int32) {
	binary.BigEndian.PutUint32(frame[requestCorrelationOffset:], uint32(id))
}

// Correlation reads the id of a request frame.
func Correlation(frame []byte) int32 {
	return int32(binary.BigEndian.Uint32(frame[requestCorrelationOffset:]))
}

// Header splits a response frame without its length into correlation id and body. Flexible responses carry tags between
// the two, apart from ApiVersions.
func Header(key, version int16, frame []byte) (id int32, body []byte, err error) {
	r := reader{b: frame}
	id = r.int32()
	if key != KeyAPIVersions {
		r.skipTags(flexible(key, version))
	}
	return id, r.b, r.err
}

func flexible(key, version int16) bool {
	switch key {
	case KeyMetadata:
		return version >= 9
	case KeyAPIVersions, KeyFindCoordinator:
		return version >= 3
	case KeyDescribeCluster:
		return true
	}
	return false
}

// Software is what ApiVersions v3 and above says of the client.
type Software struct{ Name, Version string }

// APIVersionsRequest returns a whole request frame. Bootstrap connections set neither cluster id nor node id (v5).
func APIVersionsRequest(version int16, clientID string, sw Software) []byte {
	w := begin(KeyAPIVersions, version, clientID)
	if version >= 3 {
		w.string(true, sw.Name)
		w.string(true, sw.Version)
		if version >= 5 {
			w.uvarint(0) // cluster id: null
			w.int32(-1)  // node id: not known yet
		}
		w.uvarint(0)
	}
	return w.finish()
}

// Lookup is what a Metadata request asks for.
type Lookup struct {
	All        bool     // every topic; Topics is not looked at
	Topics     []string // none: brokers only, which v0 cannot say (an empty list is "all" there)
	AutoCreate bool     // allow auto topic creation; always true below v4
}

// MetadataRequest returns a whole request frame.
func MetadataRequest(version int16, clientID string, ask Lookup) []byte {
	flex := flexible(KeyMetadata, version)
	w := begin(KeyMetadata, version, clientID)
	switch {
	case ask.All && version >= 1:
		w.count(flex, -1)
	case ask.All:
		w.count(flex, 0)
	default:
		w.count(flex, len(ask.Topics))
		for _, name := range ask.Topics {
			if version >= 10 {
				w.raw(make([]byte, 16)) // topic id: by name
			}
			w.string(flex, name)
			w.tags(flex)
		}
	}
	if version >= 4 {
		w.bool(ask.AutoCreate)
	}
	if version >= 8 && version <= 10 {
		w.bool(false) // cluster authorized operations
	}
	if version >= 8 {
		w.bool(false) // topic authorized operations
	}
	w.tags(flex)
	return w.finish()
}
