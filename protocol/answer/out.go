package answer

import "encoding/binary"

// refFrom is the length from which immutable bytes are referred to instead of copied: below it a copy is cheaper than one
// more part of a vectored write.
const refFrom = 2 << 10

// Out collects answers on their way to one connection: small pieces are copied into one buffer, large immutable ones are
// referred to. It belongs to one goroutine and is reused; in the steady state nothing allocates.
type Out struct {
	buf  []byte
	segs []seg
	size int
	open int // start in buf of the segment being grown
	// topics and seen are scratch space for one Metadata answer.
	topics []int32
	seen   []uint32
	stamp  uint32
	random uint64
}

// seg is a part of the output: ref when not nil, else buf[from:to].
type seg struct {
	ref      []byte
	from, to int
}

// NewOut returns an empty Out; seed starts the choice of controller ids.
func NewOut(seed uint64) *Out {
	return &Out{buf: make([]byte, 0, 16<<10), segs: make([]seg, 0, 16), random: seed | 1}
}

// Len is how many bytes are collected.
func (o *Out) Len() int { return o.size }

// Reset empties o. A buffer that one answer made large is given back.
func (o *Out) Reset() {
	if cap(o.buf) > 256<<10 {
		o.buf = make([]byte, 0, 16<<10)
	}
	clear(o.segs) // drop references to old snapshots
	o.buf, o.segs, o.size, o.open = o.buf[:0], o.segs[:0], 0, 0
}

// Copy appends a copy of b.
func (o *Out) Copy(b []byte) {
	o.buf = append(o.buf, b...)
	o.size += len(b)
}

// Refer appends b, which nobody will ever change.
func (o *Out) Refer(b []byte) {
	if len(b) < refFrom {
		o.Copy(b)
		return
	}
	o.cut()
	o.segs = append(o.segs, seg{ref: b})
	o.size += len(b)
}

func (o *Out) int32(v int32) {
	o.buf = binary.BigEndian.AppendUint32(o.buf, uint32(v))
	o.size += 4
}

// cut ends the segment being grown.
func (o *Out) cut() {
	if len(o.buf) > o.open {
		o.segs = append(o.segs, seg{from: o.open, to: len(o.buf)})
		o.open = len(o.buf)
	}
}

// Parts appends the collected bytes, in order, to dst. They are valid until the next Reset.
func (o *Out) Parts(dst [][]byte) [][]byte {
	o.cut()
	for _, s := range o.segs {
		if s.ref != nil {
			dst = append(dst, s.ref)
		} else {
			dst = append(dst, o.buf[s.from:s.to])
		}
	}
	return dst
}

// Rest returns what is left after the first skip bytes, fit to outlive o: referred bytes stay referred to, the rest is
// copied, and copied says how many bytes that took.
func (o *Out) Rest(skip int) (parts [][]byte, copied int) {
	o.cut()
	for _, s := range o.segs {
		b := s.ref
		if b == nil {
			b = o.buf[s.from:s.to]
		}
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b, skip = b[skip:], 0
		if s.ref == nil {
			b = append([]byte(nil), b...)
			copied += len(b)
		}
		parts = append(parts, b)
	}
	return parts, copied
}

// rand is xorshift64: which broker a KRaft cluster names as controller is anybody's choice (clients.md R16).
func (o *Out) rand() uint64 {
	o.random ^= o.random << 13
	o.random ^= o.random >> 7
	o.random ^= o.random << 17
	return o.random
}
