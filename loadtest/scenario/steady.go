package scenario

import (
	"time"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
)

// steady is a client of a library that has bootstrapped: it keeps the connection, or leaves it, and refreshes when the
// library does. An operation is one refresh.
type steady struct {
	line
	lib      *Library
	wake     *engine.Timer
	due      engine.Time // of the next refresh
	up       bool        // greeted, and asked at least once
	prepared bool
	tries    int // to connect, in a row
}

func newSteady(s *shard) client {
	c := &steady{}
	lib, a := s.library()
	c.lib = lib
	c.init(s, a, c)
	c.wake = s.loop.NewTimer(c.refresh)
	return c
}

func (c *steady) prepare() { c.connect() }

func (c *steady) connect() {
	c.up = false
	if why := c.dial(engine.Now()); why != failure.None {
		c.lost(why, "")
	}
}

// start begins the pace: the first refresh comes as if the client had been here for long.
func (c *steady) start() {
	if d, ok := c.lib.refresh(c.shard.random, c.shard.cfg.Pace); ok {
		c.due = c.shard.intended.Add(time.Duration(c.shard.random.Float64() * float64(d)))
		c.wake.Set(c.due)
	}
}

func (c *steady) pause() { c.wake.Stop() }

func (c *steady) refresh() {
	c.shard.opens(&c.op, c.due)
	if !c.up {
		c.connect() // its first Metadata is the refresh
	} else if why := c.askMetadata(); why != failure.None {
		c.lost(why, "")
	}
}

// again sets the time of the next refresh.
func (c *steady) again() {
	if d, ok := c.lib.refresh(c.shard.random, c.shard.cfg.Pace); ok && c.shard.running {
		c.due = engine.Now().Add(d)
		c.wake.Set(c.due)
	}
}

// Connected implements engine.Handler.
func (c *steady) Connected(*engine.Conn) {
	c.connected()
	if why := c.greet(); why != failure.None {
		c.lost(why, "")
	}
}

// Frame implements engine.Handler.
func (c *steady) Frame(_ *engine.Conn, frame []byte) {
	greeting := c.key == kafka.KeyAPIVersions
	why, detail := c.answer(frame)
	if why == failure.None && greeting {
		if c.key < 0 { // else it is asked again in another version
			why = c.askMetadata()
		}
		if why == failure.None {
			return
		}
	}
	if why != failure.None {
		c.conn.Close()
		c.lost(why, detail)
		return
	}
	c.up, c.tries = true, 0
	if c.lib.Leaves {
		c.conn.Close()
		c.up = false
	}
	if c.op.open {
		c.shard.served(&c.op, record.Operation)
		c.again()
	}
	if !c.prepared {
		c.prepared = true
		c.shard.free(c)
	}
}

// Failed implements engine.Handler.
func (c *steady) Failed(_ *engine.Conn, why failure.Class) { c.lost(why, "") }

// lost fails what is open. A library that has no more use for the connection does not open it again.
func (c *steady) lost(why failure.Class, detail string) {
	c.up = false
	switch {
	case !c.prepared:
		c.shard.lastFault = (&failure.Error{Class: why, Detail: detail}).Error()
		c.shard.after(c.lib.Backoff.after(c.tries, c.shard.random), c.connect)
		c.tries++
	case c.op.open:
		c.shard.failed(&c.op, why, detail)
		c.again()
	default:
		c.shard.rec.Lost(why)
	}
}
