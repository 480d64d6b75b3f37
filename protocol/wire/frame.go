package wire

import (
	"bytes"
	"encoding/binary"
)

// SizeBytes is the length of a frame's size prefix, and MinFrame the smallest size a request can have: key, version and
// correlation id (header v0).
const (
	SizeBytes = 4
	MinFrame  = 8
)

// FrameSize reads the size prefix at the start of b, which has at least SizeBytes bytes, and returns how long the frame
// is, prefix included. A size out of bounds is told apart by what else the bytes are: TLS, HTTP, PROXY and SSH all read
// as sizes far above any limit (clients.md R30).
func FrameSize(b []byte, limit int) (int, Fault) {
	size := int32(binary.BigEndian.Uint32(b))
	if size >= MinFrame && int(size) <= limit {
		return SizeBytes + int(size), OK
	}
	return 0, sniff(b)
}

var (
	proxyV2   = []byte("\r\n\r\n")
	proxyV1   = []byte("PROX")
	ssh       = []byte("SSH-")
	httpVerbs = [][]byte{
		[]byte("GET "), []byte("HEAD"), []byte("POST"), []byte("PUT "), []byte("DELE"), []byte("OPTI"),
		[]byte("CONN"), []byte("PATC"), []byte("TRAC"), []byte("PRI "),
	}
)

func sniff(b []byte) Fault {
	// Records of TLS: 0x16 handshake, 0x15 alert, then the major version 3.
	if (b[0] == 0x16 || b[0] == 0x15) && b[1] == 0x03 {
		return FaultTLS
	}
	head := b[:SizeBytes]
	switch {
	case bytes.Equal(head, proxyV2), bytes.Equal(head, proxyV1):
		return FaultProxy
	case bytes.Equal(head, ssh):
		return FaultSSH
	}
	for _, v := range httpVerbs {
		if bytes.Equal(head, v) {
			return FaultHTTP
		}
	}
	return FaultSize
}
