package scenario

import (
	"time"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
)

const (
	sipEvery   = 20 * time.Millisecond
	slowBuffer = 4 << 10 // the kernel's receive buffer, in bytes: what is not read stays with the target
)

// slowReader bootstraps, and takes the Metadata answer off the wire at a few bytes per second, as a client on a bad link
// does. It fails when no byte has come for the operation's time, not when the answer takes long.
type slowReader struct {
	line
	sip   *engine.Timer
	taken uint64
	moved engine.Time // when a byte came last
}

func newSlowReader(s *shard) client {
	c := &slowReader{}
	c.init(s, s.asks, c)
	c.conn.ReceiveBuffer = slowBuffer
	c.sip = s.loop.NewTimer(c.read)
	return c
}

func (c *slowReader) prepare() { c.shard.free(c) }

func (c *slowReader) start() {
	now := c.shard.opens(&c.op, c.shard.intended)
	if why := c.dial(now); why != failure.None {
		c.end(why, "")
	}
}

// read takes a sip.
func (c *slowReader) read() {
	now := engine.Now()
	c.conn.Read(max(1, c.shard.cfg.ReadRate*int(sipEvery/time.Millisecond)/1000))
	switch {
	case !c.op.open: // it was the last one
		return
	case c.conn.Taken() != c.taken:
		c.taken, c.moved = c.conn.Taken(), now
	case now.Sub(c.moved) > c.shard.cfg.Timeout:
		c.end(failure.Timeout, "no further byte of the answer")
		return
	}
	c.sip.Set(now.Add(sipEvery))
}

// Connected implements engine.Handler.
func (c *slowReader) Connected(*engine.Conn) {
	c.connected()
	if why := c.askAPIVersions(); why != failure.None {
		c.end(why, "")
	}
}

// Frame implements engine.Handler.
func (c *slowReader) Frame(_ *engine.Conn, frame []byte) {
	greeting := c.key == kafka.KeyAPIVersions
	why, detail := c.answer(frame)
	if why == failure.None && c.key >= 0 { // asked again in another version
		return
	}
	if why == failure.None && greeting {
		c.conn.Pause()
		if why = c.askMetadata(); why == failure.None {
			c.conn.Deadline(engine.Never)
			c.taken, c.moved = c.conn.Taken(), engine.Now()
			c.sip.Set(c.moved.Add(sipEvery))
			return
		}
	}
	c.end(why, detail)
}

// Failed implements engine.Handler.
func (c *slowReader) Failed(_ *engine.Conn, why failure.Class) { c.end(why, "") }

func (c *slowReader) end(why failure.Class, detail string) {
	c.sip.Stop()
	c.conn.Close()
	if why != failure.None {
		c.shard.failed(&c.op, why, detail)
		c.shard.later(func() { c.shard.free(c) })
		return
	}
	c.shard.served(&c.op, c.shard.stage(record.SlowReader))
	c.shard.free(c)
}
