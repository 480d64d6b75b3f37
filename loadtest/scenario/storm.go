package scenario

import (
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
)

// storm bootstraps: connect, ApiVersions, Metadata or what else is drawn, close; and, when asked, a connection to each
// broker that it was told of. An operation is all of it.
type storm struct {
	bootstrap
}

func newStorm(s *shard) client {
	c := &storm{}
	c.setUp(s, s.asks, s.cfg.DialBrokers, c.ended)
	if s.asks.draw != nil {
		c.draws = s.cfg.Draw
	}
	return c
}

func (c *storm) prepare() { c.shard.free(c) }

func (c *storm) start() { c.begin(c.shard.intended) }

func (c *storm) ended(why failure.Class) {
	if why != failure.None {
		c.shard.later(func() { c.shard.free(c) })
		return
	}
	c.shard.free(c)
}

// bootstrap is one bootstrap after the other over a line.
type bootstrap struct {
	line
	handoff *handoff            // nil: brokers are not dialled
	ended   func(failure.Class) // called after each
	keeps   bool                // the connection stays after a good one
	draws   int                 // requests that are drawn for each; 0: it asks for Metadata once
	left    int                 // of them
}

func (b *bootstrap) setUp(s *shard, a *asks, dialBrokers bool, ended func(failure.Class)) {
	b.init(s, a, b)
	b.ended = ended
	if dialBrokers {
		b.handoff = newHandoff(s, b)
	}
}

// begin starts an operation.
func (b *bootstrap) begin(intended engine.Time) {
	now := b.shard.opens(&b.op, intended)
	b.left, b.view = max(1, b.draws), nil
	if why := b.dial(now); why != failure.None {
		b.end(why, "")
	}
}

// Connected implements engine.Handler.
func (b *bootstrap) Connected(*engine.Conn) {
	b.connected()
	var why failure.Class
	detail := ""
	if b.asks.apiVersions == nil {
		why, detail = b.askNext()
	} else {
		why = b.askAPIVersions()
	}
	if why != failure.None {
		b.end(why, detail)
	}
}

// Frame implements engine.Handler.
func (b *bootstrap) Frame(_ *engine.Conn, frame []byte) {
	if !b.op.open {
		b.conn.Close()
		b.shard.rec.Lost(failure.Unasked)
		return
	}
	if b.key != kafka.KeyAPIVersions {
		b.left--
	}
	why, detail := b.answer(frame)
	switch {
	case why == failure.None && b.key >= 0: // asked again in another version
		return
	case why == failure.None && b.left > 0:
		if why, detail = b.askNext(); why == failure.None {
			return
		}
	case why == failure.None && b.handoff != nil && b.view != nil:
		b.conn.Close() // as clients do that go on to the brokers
		b.handoff.begin(b.view.Brokers)
		return
	}
	b.end(why, detail)
}

// askNext sends what comes after the greeting, in a version that the target serves.
func (b *bootstrap) askNext() (failure.Class, string) {
	if b.asks.draw == nil {
		return b.askMetadata(), ""
	}
	r, err := b.asks.draw.served(b.asks.draw.pick(), b.serves)
	if err != nil {
		return failure.ErrorCode, err.Error()
	}
	return b.ask(r), ""
}

// Failed implements engine.Handler.
func (b *bootstrap) Failed(_ *engine.Conn, why failure.Class) {
	if !b.op.open {
		b.shard.rec.Lost(why)
		return
	}
	b.end(why, "")
}

func (b *bootstrap) end(why failure.Class, detail string) {
	if why != failure.None || !b.keeps {
		b.conn.Close()
	}
	if why != failure.None {
		b.shard.failed(&b.op, why, detail)
	} else {
		b.shard.served(&b.op, record.Operation)
	}
	b.ended(why)
}
