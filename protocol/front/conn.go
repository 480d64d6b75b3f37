package front

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/session"
	"github.com/kvip/kvip/protocol/wire"
)

// conn is one client connection on its event loop. Everything but wake belongs to the loop.
type conn struct {
	g      gnet.Conn
	loop   *loop
	sess   session.Session
	opened snapshot.Time
	peer   netip.AddrPort

	// rest is what the socket did not take yet, or what is for a later turn: slices of snapshots, and copies of everything
	// else. Nothing is served while there is any, so there is never more than one flush's worth.
	rest answer.Rest
	// end is why the connection closes once rest is written.
	end session.Reason
	// buffered is how many of its bytes wait unserved, as counted in the VIP's budget.
	buffered int

	unsent     int32 // what its socket may hold that is not on its way; 0: what the kernel likes
	queued     bool  // waits for its turn to write
	full       bool  // waits for its socket
	class      class
	listed     bool
	frame      uint64 // which request the partial frame belongs to
	quiet      class  // which of the quiet lists is its own
	gone       bool   // closed, as far as the loop is concerned
	since      snapshot.Time
	prev, next *conn

	// finisher is set when the peer has half-closed and a goroutine took over.
	finisher atomic.Pointer[finisher]
}

// wake makes the loop, or the finisher that has taken over, look at the session again. Any goroutine may call it.
func (c *conn) wake() {
	if f := c.finisher.Load(); f != nil {
		f.wake()
		return
	}
	_ = c.g.Wake(nil)
}

// traffic serves what has arrived, on readability and on wakes.
func (c *conn) traffic() gnet.Action {
	l := c.loop
	begin := time.Now()
	now := snapshot.At(begin)
	n := c.g.InboundBuffered()
	if !c.rest.Empty() && !c.resume(now) {
		c.bounded(n)
		c.account(n)
		return c.action()
	}
	switch {
	case c.end != session.ReasonNone:
	case !c.sess.Busy() && n < max(c.sess.Need(), wire.SizeBytes):
		c.rested(n, now)
	default:
		var step session.Step
		step, n = c.serve(now)
		c.after(step, n, now)
	}
	if l.tally.Unflushed() {
		l.tally.Flushed(time.Since(begin))
	}
	c.account(n)
	return c.action()
}

// account counts the bytes that c has sent and that cannot be served yet, and has someone leave when all connections
// together have too many.
func (c *conn) account(n int) {
	if n == c.buffered {
		return
	}
	s := c.loop.server
	grown := n > c.buffered
	total := s.buffered.Add(int64(n - c.buffered))
	c.buffered = n
	if grown && total > int64(s.limits.BufferedBytes) {
		c.loop.shed(c)
	}
}

// serve lets the session take what is there, and writes out what it has to say. It returns how many bytes are left.
func (c *conn) serve(now snapshot.Time) (step session.Step, left int) {
	l := c.loop
	in, _ := c.g.Peek(-1)
	l.out.Reset()
	var taken int
	var reason session.Reason
	taken, step, reason = c.sess.Serve(in, l.out, &l.tally, now)
	if taken > 0 { // Discard(0) would drop everything
		_, _ = c.g.Discard(taken)
	}
	c.end = reason
	if l.out.Len() > 0 {
		c.flush(now)
	}
	return step, len(in) - taken
}

// after puts the connection, n bytes of whose input are left, into the class that its session's step means.
func (c *conn) after(step session.Step, n int, now snapshot.Time) {
	switch {
	case c.end != session.ReasonNone, !c.rest.Empty():
	case step == session.NeedFlush:
		// One flush a turn, so that a client that pipelines and reads fast does not keep others of its loop waiting.
		c.loop.enqueue(c)
	case step == session.Waiting:
		c.loop.ages.move(c, busy, now)
	case step == session.Held:
		if c.class != held {
			c.loop.ages.move(c, held, now)
		}
	default:
		c.rested(n, now)
		return
	}
	c.bounded(n)
}

// bounded ends a connection that sends on and on while an answer of it waits, n bytes by now: gnet cannot stop reading.
func (c *conn) bounded(n int) {
	if n > c.loop.server.limits.InboundBytes && c.end == session.ReasonNone {
		c.rest, c.end = answer.Rest{}, session.ReasonInbound
	}
}

// rested classes a connection that waits for its peer's bytes, n of which are here.
func (c *conn) rested(n int, now snapshot.Time) {
	to := booting
	switch {
	case n > 0:
		if c.listed && c.class == partial && c.frame == c.sess.Requests {
			return // the same frame goes on: its deadline counts from its first byte
		}
		to, c.frame = partial, c.sess.Requests
	case c.sess.Looked:
		if to = c.quiet; c.listed && c.class == to && now.Sub(c.since) < c.loop.server.drowse {
			return // relinking a busy connection for each lookup would buy nothing
		}
	case c.sess.Requests == 0:
		return // woken, but still silent
	}
	c.loop.ages.move(c, to, now)
}

// action tells gnet what to do with the connection now.
func (c *conn) action() gnet.Action {
	if c.end == session.ReasonNone || !c.rest.Empty() && c.end.Orderly() {
		return gnet.None
	}
	c.linger()
	return gnet.Close
}

// close ends the connection from its loop, outside its own traffic.
func (c *conn) close(reason session.Reason) {
	if c.end == session.ReasonNone {
		c.end = reason
	}
	c.linger()
	_ = c.loop.gloop.Close(c.g)
}

// linger makes the coming close a reset where a FIN would mislead the client: see session.Reason.Orderly.
func (c *conn) linger() {
	if !c.end.Orderly() || c.sess.Requests == 0 && c.end > session.ReasonVersion {
		_ = c.g.SetLinger(0)
	}
}
