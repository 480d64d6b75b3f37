package kafka

import "encoding/binary"

// writer appends fields to a frame. Requests are built once per run, so that it allocates freely.
type writer struct{ b []byte }

// begin writes length (filled in by finish), key, version, correlation id 0, client id and the header's tags.
func begin(key, version int16, clientID string) *writer {
	w := &writer{b: make([]byte, 4, 128)}
	w.int16(key)
	w.int16(version)
	w.int32(0)
	w.string(false, clientID) // an int16 length even in flexible headers
	w.tags(flexible(key, version))
	return w
}

func (w *writer) finish() []byte {
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	return w.b
}

func (w *writer) raw(b []byte)   { w.b = append(w.b, b...) }
func (w *writer) int16(v int16)  { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }
func (w *writer) int32(v int32)  { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *writer) uvarint(v uint) { w.b = binary.AppendUvarint(w.b, uint64(v)) }

func (w *writer) bool(v bool) {
	if v {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *writer) string(flex bool, s string) {
	if flex {
		w.uvarint(uint(len(s) + 1))
	} else {
		w.int16(int16(len(s)))
	}
	w.b = append(w.b, s...)
}

// count writes an array's length; -1 is null.
func (w *writer) count(flex bool, n int) {
	if flex {
		w.uvarint(uint(n + 1))
	} else {
		w.int32(int32(n))
	}
}

func (w *writer) tags(flex bool) {
	if flex {
		w.uvarint(0)
	}
}
