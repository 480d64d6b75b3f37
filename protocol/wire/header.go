package wire

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Keys of the requests that this package parses or that the session treats by name.
const (
	KeyMetadata           int16 = 3
	KeyControlledShutdown int16 = 7
	KeyApiVersions        int16 = 18
	KeyDescribeCluster    int16 = 60
)

// Header is a request header (v1 or v2), parsed in place: ClientID aliases the frame.
type Header struct {
	Key           int16
	Version       int16
	CorrelationID int32
	// ClientID is nil when null.
	ClientID []byte
}

// CorrelationOffset is where a frame, request or response, has its correlation id; a request's is after key and version.
const (
	CorrelationOffset         = SizeBytes + 4
	ResponseCorrelationOffset = SizeBytes
)

// PeekKey returns the key, version and correlation id of a whole frame.
func PeekKey(frame []byte) Header {
	return Header{
		Key:           int16(binary.BigEndian.Uint16(frame[4:])),
		Version:       int16(binary.BigEndian.Uint16(frame[6:])),
		CorrelationID: int32(binary.BigEndian.Uint32(frame[8:])),
	}
}

// ParseHeader reads the header of a whole frame and returns it with the body. Tagged fields of a v2 header are skipped,
// at most tagLimit of them. Whether a version is served is not its concern: an unknown key has a v1 header as far as it
// is read, and no tags are expected after it.
func ParseHeader(frame []byte, tagLimit int) (Header, []byte, Fault) {
	h := PeekKey(frame)
	if h.Key == KeyControlledShutdown && h.Version == 0 {
		return h, nil, FaultHeader // header v0: no client id, and no client sends it
	}
	r := reader{b: frame[SizeBytes+MinFrame:]}
	h.ClientID, _ = r.nullable(false)
	if Flexible(h.Key, h.Version) {
		r.tags(tagLimit)
	}
	if r.bad {
		return h, nil, FaultHeader
	}
	return h, r.b, OK
}

// Flexible says whether requests of that key and version have compact encodings and a v2 header (KIP-482). For keys that
// kmsg does not know it is false.
func Flexible(key, version int16) bool {
	return key >= 0 && int(key) < len(flexibleSince) && version >= flexibleSince[key]
}

// flexibleSince has the first flexible version of each key, or a version that no request has.
var flexibleSince = func() (t [kmsg.MaxKey + 1]int16) {
	for key := range t {
		t[key] = 1<<15 - 1
		req := kmsg.RequestForKey(int16(key))
		if req == nil {
			continue
		}
		for v := int16(0); v <= req.MaxVersion(); v++ {
			if req.SetVersion(v); req.IsFlexible() {
				t[key] = v
				break
			}
		}
	}
	return t
}()
