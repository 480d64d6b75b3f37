package scenario

import (
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

// kept holds one connection open and looks up over it, again and again: what producers and consumers do between
// bootstraps. An operation is one Metadata request.
type kept struct {
	line
	greeted bool // ApiVersions has been answered on this connection
	away    bool // not yet, or not again, with the shard
}

func newKept(s *shard) client {
	k := &kept{away: true}
	k.init(s, s.asks, k)
	return k
}

func (k *kept) prepare() { k.connect() }

func (k *kept) connect() {
	k.greeted = false
	if why := k.dial(engine.Now()); why != failure.None {
		k.lost(why, "")
	}
}

// start looks up, after the connection stands again if it was lost.
func (k *kept) start() {
	k.shard.opens(&k.op, k.shard.intended)
	if k.greeted {
		k.lookup()
	}
}

func (k *kept) lookup() {
	if why := k.askMetadata(); why != failure.None {
		k.lost(why, "")
	}
}

// Connected implements engine.Handler.
func (k *kept) Connected(*engine.Conn) {
	k.connected()
	if why := k.askAPIVersions(); why != failure.None {
		k.lost(why, "")
	}
}

// Frame implements engine.Handler.
func (k *kept) Frame(_ *engine.Conn, frame []byte) {
	if why, detail := k.answer(frame); why != failure.None {
		k.conn.Close()
		k.lost(why, detail)
		return
	}
	switch {
	case k.key >= 0: // asked again in another version
	case !k.greeted:
		k.greeted = true
		if k.op.open {
			k.lookup() // asked for while the connection was down
		} else if k.away {
			k.away = false
			k.shard.free(k)
		}
	case k.op.open:
		k.shard.served(&k.op, record.Operation)
		k.shard.free(k)
	}
}

// Failed implements engine.Handler.
func (k *kept) Failed(_ *engine.Conn, why failure.Class) { k.lost(why, "") }

// lost fails what is open and connects anew: at once when the target closed a quiet connection, which it may, else after
// a pause. In an open loop the client takes operations meanwhile, and they fail with the connection: that nobody can be
// asked is the target's fault, not a want of clients.
func (k *kept) lost(why failure.Class, detail string) {
	quiet := k.greeted && !k.op.open && why == failure.Closed
	k.greeted = false
	if quiet {
		k.shard.rec.Lost(why)
		k.connect()
		return
	}
	k.shard.later(k.connect)
	switch {
	case !k.op.open:
		k.shard.rec.Lost(why)
		k.shard.lastFault = (&failure.Error{Class: why, Detail: detail}).Error()
	case k.shard.beats != nil:
		k.shard.failed(&k.op, why, detail)
		k.shard.free(k)
	default:
		k.away = true // comes back to the shard when the connection stands again
		k.shard.failed(&k.op, why, detail)
	}
}
