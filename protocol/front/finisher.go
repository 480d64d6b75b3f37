package front

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/session"
)

// finisher serves what a half-closed client still has to get: gnet closes a connection as soon as its peer stops sending,
// a broker answers first. It runs the same session over a duplicate of the socket, on a goroutine of its own.
type finisher struct {
	woken chan struct{}
}

func (f *finisher) wake() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

// owes says whether c owes its peer something: an answer in the making, or bytes that the socket did not take.
func (c *conn) owes() bool { return c.sess.Busy() || !c.rest.Empty() }

// finish takes c over from its loop. It is called in OnClose, while the socket is still open, and returns false when
// there is no descriptor to be had.
func (c *conn) finish() bool {
	in, _ := c.g.Peek(-1)
	in = append([]byte(nil), in...)
	fd, err := c.g.Dup()
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), "half-closed")
	nc, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return false
	}
	f := &finisher{woken: make(chan struct{}, 1)}
	c.finisher.Store(f)
	s := c.loop.server
	s.finishing.Add(1)
	s.finishers.Store(f, nc)
	go func() {
		defer s.finishing.Done()
		defer s.finishers.Delete(f)
		reason := f.run(c, nc, in)
		if !reason.Orderly() {
			_ = nc.(*net.TCPConn).SetLinger(0)
		}
		_ = nc.Close()
		c.sess.Close()
		s.ended(c, reason)
	}()
	return true
}

// run serves in to the end and returns why the connection is over.
func (f *finisher) run(c *conn, nc net.Conn, in []byte) (why session.Reason) {
	defer func() {
		if r := recover(); r != nil {
			c.loop.server.panicked(r)
			why = session.ReasonPanic
		}
	}()
	lim := &c.loop.server.limits
	out, tally := answer.NewOut(uint64(c.opened)), session.Tally{Stats: &c.loop.server.finished}
	write := func(rest answer.Rest) session.Reason {
		for !rest.Empty() { // a few parts at a time: the deadline is for a peer that does not read, not for one that is slow
			const few = 16
			parts := net.Buffers(rest.Parts(nil, few))
			_ = nc.SetWriteDeadline(time.Now().Add(lim.Stalled))
			n, err := parts.WriteTo(nc)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				return session.ReasonStalled
			case err != nil:
				return session.ReasonReset
			}
			rest.Advance(int(n))
		}
		return session.ReasonNone
	}
	if failed := write(c.rest); failed != session.ReasonNone {
		return failed
	}
	for {
		out.Reset()
		now := snapshot.Now()
		taken, step, reason := c.sess.Serve(in, out, &tally, now)
		in = in[taken:]
		if out.Len() > 0 {
			rest, _ := out.Rest(0)
			if failed := write(rest); failed != session.ReasonNone {
				return failed
			}
		}
		tally.Flushed(snapshot.Now().Sub(now))
		switch step {
		case session.End:
			return reason
		case session.NeedInput:
			return session.ReasonClient
		case session.Waiting:
			<-f.woken // the forward has a deadline
		case session.Held:
			time.Sleep(tickEvery)
		}
	}
}
