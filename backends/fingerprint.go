package backends

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// fingerprint tells an answer that says what an earlier one of the same broker said, without decoding it: the bytes are
// the same, but for the controller id where that is a random broker's (KRaft).
type fingerprint struct {
	size int
	// offset is where the controller id is, -1 when it counts like the rest.
	offset int
	sum    uint64
}

// newFingerprint takes body's. encode encodes the answer as it was decoded but with another controller id and without
// what follows it; where two such encodings differ is the controller id. ok is false when the body is not laid out as the
// encoder lays it out.
func newFingerprint(body []byte, anyController bool, encode func(controller int32) []byte) (f fingerprint, ok bool) {
	f = fingerprint{size: len(body), offset: -1}
	if anyController {
		a, b := encode(0), encode(-1)
		f.offset = 0
		for f.offset < len(a) && a[f.offset] == b[f.offset] {
			f.offset++
		}
		if f.offset+4 > len(body) || !bytes.Equal(body[:f.offset], a[:f.offset]) {
			return fingerprint{}, false
		}
	}
	f.sum = f.hash(body)
	return f, true
}

func (f fingerprint) hash(body []byte) uint64 {
	if f.offset < 0 {
		return xxhash.Sum64(body)
	}
	d := xxhash.New()
	_, _ = d.Write(body[:f.offset])
	_, _ = d.Write(body[f.offset+4:])
	return d.Sum64()
}

// matches says whether body says the same. listed tells the controller ids that may be in it.
func (f fingerprint) matches(body []byte, listed func(id int32) bool) bool {
	if len(body) != f.size {
		return false
	}
	if f.offset >= 0 && !listed(int32(binary.BigEndian.Uint32(body[f.offset:]))) {
		return false
	}
	return f.hash(body) == f.sum
}
