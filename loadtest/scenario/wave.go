package scenario

import (
	"time"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

// wave brings a client back to the bootstrap address, again and again: with everybody else at the same moment, then after
// its library's back-off for as long as it fails. Each try is an operation.
type wave struct {
	bootstrap
	lib    *Library
	timer  *engine.Timer
	wave   engine.Time                        // the last one's moment
	due    engine.Time                        // of the next try
	tries  int                                // failed in a row
	away   bool                               // not served since the last wave
	gather func(wave engine.Time) engine.Time // from a wave's moment to the first try's
	strike func()                             // at a wave
}

func (w *wave) setUp(s *shard, dialBrokers bool) {
	lib, a := s.library()
	w.lib = lib
	w.bootstrap.setUp(s, a, dialBrokers, w.tried)
	w.timer = s.loop.NewTimer(w.fire)
}

// start waits for the next wave: the first one comes with the measurement.
func (w *wave) start() {
	w.away = false
	w.await(max(w.shard.from, w.shard.intended))
}

func (w *wave) pause() { w.timer.Stop() }

// await sets the client up for a wave.
func (w *wave) await(moment engine.Time) {
	w.wave = moment
	w.timer.Set(moment)
}

func (w *wave) fire() {
	if w.away {
		w.begin(w.due)
		return
	}
	w.away, w.tries = true, 0
	if w.strike != nil {
		w.strike()
	}
	w.due = w.gather(w.wave)
	w.timer.Set(w.due)
}

// tried ends a try.
func (w *wave) tried(why failure.Class) {
	now := engine.Now()
	if why != failure.None {
		w.tries++
		w.due = now.Add(w.lib.Backoff.after(w.tries, w.shard.random))
	} else {
		if w.shard.counts(w.wave) {
			w.shard.rec.Took(record.Recovery, now.Sub(w.wave))
		}
		w.away = false
		next := w.wave
		for next <= now {
			next = next.Add(w.shard.cfg.Every)
		}
		w.wave = next
		w.due = next
	}
	if w.shard.running {
		w.timer.Set(w.due)
	}
}

// reconnect is a client whose connection dies with all others, as behind a balancer that restarts.
type reconnect struct {
	wave
	prepared bool
}

func newReconnect(s *shard) client {
	c := &reconnect{}
	c.wave.setUp(s, false)
	c.keeps = true
	c.ended = c.came
	c.strike = func() { c.conn.Close() }
	c.gather = func(moment engine.Time) engine.Time { return moment.Add(c.lib.Backoff.after(0, s.random)) }
	return c
}

// prepare bootstraps for the first time, outside the measurement.
func (c *reconnect) prepare() { c.begin(engine.Now()) }

func (c *reconnect) came(why failure.Class) {
	switch {
	case c.prepared:
		c.tried(why)
	case why != failure.None:
		c.shard.lastFault = why.String()
		c.shard.after(c.lib.Backoff.after(0, c.shard.random), c.prepare)
	default:
		c.prepared = true
		c.shard.free(c)
	}
}

// rebootstrap is a client that has lost all its brokers and comes back to where it began (KIP-899, KIP-1102); it then
// connects to the brokers that it is told of.
type rebootstrap struct{ wave }

func newRebootstrap(s *shard) client {
	c := &rebootstrap{}
	c.wave.setUp(s, true)
	c.gather = func(moment engine.Time) engine.Time {
		return moment.Add(time.Duration(s.random.Float64() * float64(s.cfg.Spread)))
	}
	return c
}

func (c *rebootstrap) prepare() { c.shard.free(c) }
