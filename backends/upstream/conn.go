// Package upstream holds kvip's own connections to brokers: a bounded number per broker, one request in flight on each,
// kept while they are used. It moves frames and knows nothing of what is in them but the size and the correlation id.
package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/protocol/wire"
)

const (
	// DefaultMaxAnswer is the largest answer taken from a broker: an all-topics answer of a million partitions is 45 MB.
	DefaultMaxAnswer = 64 << 20
	// firstChunk is what is allocated for an answer before more than that has arrived of it.
	firstChunk = 64 << 10
	// drainGrace is how long an answer that nobody waits for any more is awaited, so that clients which come and go do
	// not cost brokers a connection each.
	drainGrace = time.Second
)

// What can go wrong on a connection, besides errors of the network.
var (
	// ErrLate: the answer did not come in time; the connection is closed, as the late answer would meet the next request.
	ErrLate = errors.New("the broker's answer is late")
	// ErrAnswer: the broker's bytes are not an answer to what was asked.
	ErrAnswer = errors.New("not an answer to the request")
)

// Conn is one connection to a broker. It is used by one goroutine at a time and is unusable after any error.
type Conn struct {
	nc    net.Conn
	limit int
	id    int32
	idle  time.Time // when it was last put back
	head  [4 << 10]byte
}

// NewConn wraps an established connection; answers above limit bytes are refused (0: DefaultMaxAnswer).
func NewConn(nc net.Conn, limit int) *Conn {
	if limit <= 0 {
		limit = DefaultMaxAnswer
	}
	return &Conn{nc: nc, limit: limit}
}

// Close closes the connection.
func (c *Conn) Close() { _ = c.nc.Close() }

// RoundTrip sends frame, a whole request, with a correlation id of the connection's own, and returns the broker's whole
// answer with the frame's id restored. The frame is not changed. When ctx ends by its deadline RoundTrip fails with
// ErrLate; when it is cancelled the answer is awaited for up to a second more. After an error the connection is closed.
func (c *Conn) RoundTrip(ctx context.Context, frame []byte) (answer []byte, err error) {
	answer, _, _, err = c.roundTrip(ctx, frame, nil)
	return answer, err
}

// roundTrip reads into buf what fits. It also says whether any byte of the request was handed to the network, and whether
// any byte came back.
func (c *Conn) roundTrip(ctx context.Context, frame, buf []byte) (answer []byte, wrote, got bool, err error) {
	deadline, _ := ctx.Deadline()
	_ = c.nc.SetDeadline(deadline)
	set := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(set)
		if ctx.Err() == context.Canceled {
			if grace := time.Now().Add(drainGrace); deadline.IsZero() || grace.Before(deadline) {
				_ = c.nc.SetDeadline(grace)
			}
		}
	})
	defer func() {
		if !stop() {
			<-set // or the deadline may be set while the next request is under way
		}
		if err != nil {
			c.Close()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = ErrLate
			}
		}
	}()
	c.id++
	if wrote, err = c.write(frame); err != nil {
		return nil, wrote, false, err
	}
	answer, got, err = c.read(buf)
	if err == nil {
		copy(answer[wire.ResponseCorrelationOffset:], frame[wire.CorrelationOffset:][:4])
	}
	return answer, true, got, err
}

func (c *Conn) write(frame []byte) (wrote bool, err error) {
	const end = wire.CorrelationOffset + 4
	var head [end]byte
	copy(head[:], frame[:wire.CorrelationOffset])
	binary.BigEndian.PutUint32(head[wire.CorrelationOffset:], uint32(c.id))
	n, err := (&net.Buffers{head[:], frame[end:]}).WriteTo(c.nc)
	return n > 0, err
}

// read returns the next frame, in buf if it fits, if it has the id of the request. Memory is taken only as bytes arrive.
func (c *Conn) read(buf []byte) (frame []byte, got bool, err error) {
	n, err := io.ReadAtLeast(c.nc, c.head[:], wire.SizeBytes)
	if err != nil {
		return nil, n > 0, err
	}
	size := int32(binary.BigEndian.Uint32(c.head[:]))
	if size < 4 || int64(size) > int64(c.limit) {
		return nil, true, fmt.Errorf("%w: its size is %d, allowed are 4 to %d bytes", ErrAnswer, size, c.limit)
	}
	total := wire.SizeBytes + int(size)
	if n > total {
		return nil, true, fmt.Errorf("%w: bytes after its end", ErrAnswer)
	}
	switch has := cap(buf); {
	case has >= total:
		frame = buf[:total]
	case total <= 2*has: // an answer that has grown may be believed to, and will grow again
		frame = make([]byte, total, min(total+total/8, c.limit+wire.SizeBytes))
	default:
		frame = make([]byte, min(total, max(n, firstChunk)))
	}
	copy(frame, c.head[:n])
	for n < total {
		if n == len(frame) {
			larger := make([]byte, min(total, 2*n))
			copy(larger, frame)
			frame = larger
		}
		m, err := c.nc.Read(frame[n:])
		n += m
		if err != nil && n < total {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, true, err
		}
	}
	if id := int32(binary.BigEndian.Uint32(frame[wire.ResponseCorrelationOffset:])); id != c.id {
		return nil, true, fmt.Errorf("%w: correlation id %d instead of %d", ErrAnswer, id, c.id)
	}
	return frame, true, nil
}

// alive says whether an idle connection may be used: the peer has neither closed it nor sent anything unasked. Where the
// connection cannot tell it is taken for alive.
func (c *Conn) alive() bool {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = err == unix.EAGAIN || err == unix.EINTR
		return true
	})
	return err == nil && alive
}
