package wire

import "encoding/binary"

// reader walks over a body in place. The first read past the end, or a value that cannot be, makes it bad; reads of a bad
// reader return zero values, so that one check at the end suffices.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) int8() int8 {
	if v := r.take(1); v != nil {
		return int8(v[0])
	}
	return 0
}

func (r *reader) bool() bool { return r.int8() != 0 }

func (r *reader) int16() int16 {
	if v := r.take(2); v != nil {
		return int16(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (r *reader) int32() int32 {
	if v := r.take(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

// uvarint reads an unsigned varint of at most 32 bits (KIP-482); a fifth byte that carries more, or a sixth, is bad.
func (r *reader) uvarint() uint32 {
	var v uint32
	for i := range 5 {
		if i >= len(r.b) {
			break
		}
		c := r.b[i]
		if i == 4 && c > 0x0f {
			break
		}
		v |= uint32(c&0x7f) << (7 * i)
		if c < 0x80 {
			r.b = r.b[i+1:]
			return v
		}
	}
	r.bad, r.b = true, nil
	return 0
}

// nullable reads a string whose length is an int16, or a compact one; ok is false for null, which is any negative length, as
// for a broker.
func (r *reader) nullable(compact bool) (s []byte, ok bool) {
	var n int
	if compact {
		n = int(int32(r.uvarint()) - 1)
	} else {
		n = int(r.int16())
	}
	if r.bad || n < 0 {
		return nil, false
	}
	return r.take(n), !r.bad
}

// str reads a string that may not be null.
func (r *reader) str(compact bool) []byte {
	s, ok := r.nullable(compact)
	if !ok {
		r.bad, r.b = true, nil
	}
	return s
}

// tags skips a section of tagged fields without storing any, and refuses more than limit of them: a tag costs a peer two
// bytes and a decoder an object (CVE-2026-111115).
func (r *reader) tags(limit int) {
	n := r.uvarint()
	if r.bad || n == 0 {
		return
	}
	if int64(n) > int64(limit) {
		r.bad, r.b = true, nil
		return
	}
	for range n {
		r.uvarint() // the tag; a broker does not mind their order
		size := r.uvarint()
		if int64(size) > int64(len(r.b)) {
			r.bad, r.b = true, nil
			return
		}
		r.take(int(size))
	}
}
