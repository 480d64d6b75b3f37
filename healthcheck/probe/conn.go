package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/protocol/wire"
)

// conn is a connection to a broker with at most one request in flight.
type conn struct {
	net.Conn
	opened      time.Time
	format      *kmsg.RequestFormatter
	limit       int
	correlation int32
	frame       []byte
	in          [smallAnswer]byte
	large       *bytes.Buffer // the last answer if it did not fit in, nil when it did
	list        *listing      // the last broker list that came on it, nil before
}

// smallAnswer is the length of an answer for which a connection has room of its own: an ApiVersions answer, which is all
// that most probes ask for, comes in one read and without memory of its own.
const smallAnswer = 1024

// buffers are for answers that do not fit: of thousands of brokers only a few have one at a time.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// release gives back what the last answer took; it is not valid any more.
func (c *conn) release() {
	if c.large != nil {
		buffers.Put(c.large)
		c.large = nil
	}
}

// fault is an error with its reason.
type fault struct {
	reason healthcheck.Reason
	detail string
}

func (f *fault) Error() string { return f.detail }

// connect is the check that opens the connection unless one is kept.
func connect(ctx context.Context, v *visit) (healthcheck.Reason, string) {
	if v.conn != nil {
		return v.ok(func() string {
			return fmt.Sprintf("kept to %s for %v", v.conn.RemoteAddr(), time.Since(v.conn.opened).Round(time.Millisecond))
		})
	}
	nc, err := v.cfg.Dial(ctx, "tcp", v.cfg.Addr)
	if err != nil {
		return classify(ctx, err, ReasonConnect)
	}
	v.conn = &conn{
		Conn: nc, opened: time.Now(), limit: v.cfg.MaxAnswer,
		format: kmsg.NewRequestFormatter(kmsg.FormatterClientID(v.cfg.ClientID)),
	}
	v.version = -1 // it may be another version of Kafka by now
	v.res.Reconnected = true
	return healthcheck.OK, "opened to " + nc.RemoteAddr().String()
}

// classify gives an error its reason: other when it is none of the known kinds.
func classify(ctx context.Context, err error, other healthcheck.Reason) (healthcheck.Reason, string) {
	var f *fault
	var timeout net.Error
	switch {
	case errors.As(err, &f):
		return f.reason, f.detail
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return ReasonTimeout, "no answer in time: " + err.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return ReasonRefused, err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ReasonClosed, "the broker closed the connection: " + err.Error()
	}
	return other, err.Error()
}

// ask sends a request and returns the body of its answer, which is valid until the next call, or release.
func (c *conn) ask(ctx context.Context, req kmsg.Request) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	c.correlation++
	c.frame = c.format.AppendRequest(c.frame[:0], req, c.correlation)
	_, err := c.Write(c.frame)
	var frame []byte
	if err == nil {
		frame, err = c.read()
	}
	if !stop() && err == nil {
		err = ctx.Err() // the deadline is set, or about to be: the connection is of no more use
	}
	if err != nil {
		return nil, err
	}
	if got := int32(binary.BigEndian.Uint32(frame)); got != c.correlation {
		return nil, badAnswer("the answer's correlation id is %d, the request's %d", got, c.correlation)
	}
	body := frame[4:]
	// A flexible answer has tagged fields in its header, except that of ApiVersions (KIP-511).
	if req.IsFlexible() && req.Key() != int16(kmsg.ApiVersions) {
		r := kbin.Reader{Src: body}
		kmsg.SkipTags(&r)
		if !r.Ok() {
			return nil, badAnswer("the tagged fields of the answer's header do not parse")
		}
		body = r.Src
	}
	return body, nil
}

// read returns one frame without its size. Memory grows with what has come, never with what a size announces.
func (c *conn) read() ([]byte, error) {
	got, err := io.ReadAtLeast(c.Conn, c.in[:], wire.SizeBytes)
	if err != nil {
		return nil, err
	}
	n, bad := wire.FrameSize(c.in[:], c.limit)
	switch {
	case bad != wire.OK && notKafka(c.in[:wire.SizeBytes]) != "":
		return nil, badAnswer("%s", notKafka(c.in[:wire.SizeBytes]))
	case bad != wire.OK:
		return nil, badAnswer("the answer begins with % x, which is no size up to %d (%v)", c.in[:wire.SizeBytes], c.limit, bad)
	case got > n:
		return nil, badAnswer("%d bytes follow the answer, and nothing more was asked", got-n)
	case n <= len(c.in):
		more, err := io.ReadFull(c.Conn, c.in[got:n])
		if err != nil {
			return nil, fmt.Errorf("after %d of %d bytes: %w", got+more-wire.SizeBytes, n-wire.SizeBytes, err)
		}
		return c.in[wire.SizeBytes:n], nil
	}
	c.release()
	c.large = buffers.Get().(*bytes.Buffer)
	c.large.Reset()
	c.large.Write(c.in[wire.SizeBytes:got])
	if more, err := io.CopyN(c.large, c.Conn, int64(n-got)); err != nil {
		return nil, fmt.Errorf("after %d of %d bytes: %w", int64(got)+more-wire.SizeBytes, n-wire.SizeBytes, err)
	}
	return c.large.Bytes(), nil
}

// notKafka says what it is that answers with those bytes, "" when it is nothing that is often met.
func notKafka(head []byte) string {
	switch {
	case (head[0] == 0x15 || head[0] == 0x16) && head[1] == 3: // an alert, or a handshake
		return "it speaks TLS: register the broker's plain listener"
	case string(head) == "HTTP":
		return "it speaks HTTP: this is no port of Kafka"
	case string(head) == "SSH-":
		return "it speaks SSH: this is no port of Kafka"
	}
	return ""
}

func badAnswer(format string, args ...any) *fault {
	return &fault{ReasonBadAnswer, fmt.Sprintf(format, args...)}
}
