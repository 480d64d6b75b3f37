package answer

import (
	"encoding/binary"

	"github.com/kvip/kvip/backends/snapshot"
)

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

// seg is a part of the output: ref when not nil, else pages when there are any, else buf[from:to].
type seg struct {
	ref      []byte
	pages    []snapshot.Page
	from, to int
}

// NewOut returns an empty Out; seed starts the choice of controller ids.
func NewOut(seed uint64) *Out {
	return &Out{buf: make([]byte, 0, 16<<10), segs: make([]seg, 0, 16), random: seed | 1}
}

// Len is how many bytes are collected.
func (o *Out) Len() int { return o.size }

// Referred is how many of the collected bytes are referred to.
func (o *Out) Referred() int { return o.size - len(o.buf) }

// Reset empties o. A buffer that one answer made large is given back.
func (o *Out) Reset() {
	if cap(o.buf) > 256<<10 {
		o.buf = make([]byte, 0, 16<<10)
	}
	if len(o.segs) > 0 {
		clear(o.segs) // drop references to old snapshots
	}
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

// referPages appends the bytes of all pages, which are size bytes.
func (o *Out) referPages(ps []snapshot.Page, size int) {
	if size < refFrom {
		for i := range ps {
			o.Copy(ps[i].Bytes)
		}
		return
	}
	o.cut()
	o.segs = append(o.segs, seg{pages: ps})
	o.size += size
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

// Whole returns the collected bytes if they are one piece of o's own, as small answers are, else nil. They are valid until
// the next Reset.
func (o *Out) Whole() []byte {
	if len(o.segs) > 0 {
		return nil
	}
	return o.buf
}

// Parts appends the collected bytes, in order, to dst. They are valid until the next Reset.
func (o *Out) Parts(dst [][]byte) [][]byte {
	o.cut()
	for i := range o.segs {
		s := &o.segs[i]
		switch {
		case s.ref != nil:
			dst = append(dst, s.ref)
		case s.pages != nil:
			for j := range s.pages {
				dst = append(dst, s.pages[j].Bytes)
			}
		default:
			dst = append(dst, o.buf[s.from:s.to])
		}
	}
	return dst
}

// Rest returns what is left after the first skip bytes, fit to outlive o: what was referred to still is, the rest is copied,
// and copied says how many bytes that took.
func (o *Out) Rest(skip int) (rest Rest, copied int) {
	o.cut()
	kept := append([]byte(nil), o.buf...)
	rest.segs = append(rest.segs, o.segs...)
	for i := range rest.segs {
		if s := &rest.segs[i]; s.ref == nil && s.pages == nil {
			s.ref = kept[s.from:s.to]
		}
	}
	rest.Advance(skip)
	return rest, len(kept)
}

// Rest is what a socket did not take. It holds on to the snapshot that it is made of, by a few slices however long it is.
type Rest struct {
	segs []seg
	skip int // bytes of the first part that are out
}

// Empty says that nothing is left.
func (r *Rest) Empty() bool { return len(r.segs) == 0 }

// Parts appends the next parts to dst, at most most of them.
func (r *Rest) Parts(dst [][]byte, most int) [][]byte {
	skip := r.skip
	for i := range r.segs {
		s := &r.segs[i]
		if s.ref != nil {
			if most--; most < 0 {
				return dst
			}
			dst, skip = append(dst, s.ref[skip:]), 0
			continue
		}
		for j := range s.pages {
			if most--; most < 0 {
				return dst
			}
			dst, skip = append(dst, s.pages[j].Bytes[skip:]), 0
		}
	}
	return dst
}

// Advance drops the next n bytes.
func (r *Rest) Advance(n int) {
	n += r.skip
	for len(r.segs) > 0 {
		s := &r.segs[0]
		first := s.ref
		if first == nil {
			first = s.pages[0].Bytes
		}
		if n < len(first) {
			break
		}
		n -= len(first)
		if s.ref == nil {
			s.pages = s.pages[1:] // a copy of the slice: the pages stay as they are
		}
		if s.ref != nil || len(s.pages) == 0 {
			r.segs[0] = seg{} // let go of the snapshot
			r.segs = r.segs[1:]
		}
	}
	if r.skip = n; len(r.segs) == 0 {
		*r = Rest{}
	}
}

// rand is xorshift64: which broker a KRaft cluster names as controller is anybody's choice (clients.md R16).
func (o *Out) rand() uint64 {
	o.random ^= o.random << 13
	o.random ^= o.random >> 7
	o.random ^= o.random << 17
	return o.random
}
