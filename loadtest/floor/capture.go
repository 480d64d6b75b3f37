package floor

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Capture asks a server what clients will ask and returns its answers: requests are whole frames.
func Capture(ctx context.Context, addr string, requests [][]byte) ([]Answer, error) {
	var answers []Answer
	for _, request := range requests {
		response, err := Ask(ctx, addr, request)
		if err != nil {
			return nil, err
		}
		answers = append(answers, Answer{
			Key: int16(binary.BigEndian.Uint16(request[4:])), Version: int16(binary.BigEndian.Uint16(request[6:])),
			RequestSize: len(request) - 4, Response: response,
		})
	}
	return answers, nil
}

// maxAnswer is the longest answer that is believed, in bytes: Kafka's own limit for a request.
const maxAnswer = 100 << 20

// Ask sends one request frame on a connection of its own and returns the answer's frame without its length.
func Ask(ctx context.Context, addr string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, fmt.Errorf("%s: answer to key %d version %d: %w", addr, binary.BigEndian.Uint16(request[4:]), binary.BigEndian.Uint16(request[6:]), err)
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	if size < 4 || size > maxAnswer {
		return nil, fmt.Errorf("%s: answer of %d bytes", addr, size)
	}
	frame := make([]byte, size)
	_, err = io.ReadFull(c, frame)
	return frame, err
}
