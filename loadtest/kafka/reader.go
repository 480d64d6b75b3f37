package kafka

import (
	"encoding/binary"
	"errors"
)

// ErrShort says that a body ended inside a field.
var ErrShort = errors.New("ends inside a field")

// ErrMalformed says that a body holds what its schema cannot: a negative length, a count that its bytes cannot hold, an
// overlong varint, a null where none may be.
var ErrMalformed = errors.New("does not follow its schema")

// IsShort tells a body that ends inside a field from one that is wrong in another way.
func IsShort(err error) bool { return errors.Is(err, ErrShort) }

// reader takes fields off a body. The first fault stays in err and every later read returns zero, so that decoders check
// once. Strings are views into the body.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail(ErrShort)
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) int16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *reader) int64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) bool() bool {
	b := r.take(1)
	return b != nil && b[0] != 0
}

func (r *reader) uvarint() int {
	v, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		r.fail(ErrShort)
		return 0
	case n < 0 || n > 5 || v > 1<<32-1:
		r.fail(ErrMalformed)
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// length reads the length of a string or the count of an array: -1 is null.
func (r *reader) length(flexible bool, fixed int) int {
	switch {
	case flexible:
		return r.uvarint() - 1
	case fixed == 2:
		return int(r.int16())
	default:
		return int(r.int32())
	}
}

// nullable reads a string; ok is false for null.
func (r *reader) nullable(flexible bool) (s []byte, ok bool) {
	n := r.length(flexible, 2)
	if r.err != nil || n == -1 {
		return nil, false
	}
	if n < 0 {
		r.fail(ErrMalformed)
		return nil, false
	}
	return r.take(n), true
}

// string reads a string that must not be null.
func (r *reader) string(flexible bool) []byte {
	s, ok := r.nullable(flexible)
	if !ok && r.err == nil {
		r.fail(ErrMalformed)
	}
	return s
}

// count reads the number of elements of an array that must not be null; each takes at least size bytes, so that a count
// which the body cannot hold is refused before anything is allocated for it.
func (r *reader) count(flexible bool, size int) int {
	n := r.length(flexible, 4)
	switch {
	case r.err != nil:
		return 0
	case n < 0:
		r.fail(ErrMalformed)
		return 0
	case n > len(r.b)/size:
		r.fail(ErrShort)
		return 0
	}
	return n
}

// skipTags passes over the tagged fields at the end of a flexible structure.
func (r *reader) skipTags(flexible bool) {
	if !flexible {
		return
	}
	r.tags(func(int, []byte) {})
}

// tags calls visit for each tagged field.
func (r *reader) tags(visit func(tag int, value []byte)) {
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		tag := r.uvarint()
		value := r.take(r.uvarint())
		if r.err == nil {
			visit(tag, value)
		}
	}
}

// end says whether the body was read whole: an error, or bytes left over.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return ErrMalformed
	}
	return r.err
}
