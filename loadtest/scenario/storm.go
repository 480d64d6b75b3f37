package scenario

import (
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

// storm bootstraps: connect, ApiVersions, Metadata, close. An operation is all of it.
type storm struct {
	line
	intended engine.Time
	open     bool
}

func newStorm(s *shard) client {
	c := &storm{}
	c.init(s, c)
	return c
}

func (c *storm) prepare() { c.shard.free(c) }

func (c *storm) start() {
	c.intended, c.open = c.shard.intended, true
	now := c.shard.began(c.intended)
	if why := c.dial(now); why != failure.None {
		c.end(why, "")
	}
}

// Connected implements engine.Handler.
func (c *storm) Connected(*engine.Conn) {
	c.shard.rec.Took(record.Connect, engine.Now().Sub(c.dialed))
	if why := c.askAPIVersions(); why != failure.None {
		c.end(why, "")
	}
}

// Frame implements engine.Handler.
func (c *storm) Frame(_ *engine.Conn, frame []byte) {
	greeting := c.key != keyMetadata
	why, detail := c.answer(frame)
	if why == failure.None && greeting {
		why = c.askMetadata()
		if why == failure.None {
			return
		}
	}
	c.end(why, detail)
}

// Failed implements engine.Handler.
func (c *storm) Failed(_ *engine.Conn, why failure.Class) { c.end(why, "") }

func (c *storm) end(why failure.Class, detail string) {
	c.conn.Close()
	if why != failure.None {
		c.shard.rec.Fail(why, detail)
		c.shard.later(func() { c.shard.free(c) })
		return
	}
	c.shard.rec.Answer(engine.Now().Sub(c.intended))
	c.shard.free(c)
}
