package front

import (
	"slices"
	"time"

	"github.com/panjf2000/gnet/v2"

	"github.com/kvip/kvip/backends/snapshot"
)

// Large answers are written in turns, so that lookups on the same loop do not wait behind megabytes that the kernel copies:
// each millisecond some turns go out where they arise, and the rest have theirs from the pump, one connection after the
// other, between two rounds of the loop (docs/adr/0006).

const (
	// bulkFrom is from how many referred bytes on an answer is written in turns.
	bulkFrom = 64 << 10
	// turnBytes is about how much one connection writes before others of its loop have their turn, one that reads up to
	// unsentMost.
	turnBytes = 1 << 20
	// window is the time in which turns go out without the pump until they have written windowBytes.
	window      = time.Millisecond
	windowBytes = 256 << 10
	// pumpFor is how long the pump works before the loop looks at its other connections.
	pumpFor = 500 * time.Microsecond
)

// pump is the connections of one loop that have something to write and sockets that may take it.
type pump struct {
	ready   []*conn
	asked   bool // it will run
	running bool
	since   snapshot.Time
	written int // since then
}

// affords says whether another turn fits into this window.
func (p *pump) affords(now snapshot.Time) bool {
	if p.running {
		return true
	}
	if now.Sub(p.since) >= window {
		p.since, p.written = now, 0
	}
	return p.written < windowBytes
}

// enqueue gives c a turn later.
func (l *loop) enqueue(c *conn) {
	if c.queued {
		return
	}
	c.queued = true
	l.pump.ready = append(l.pump.ready, c)
	if !l.pump.running {
		l.askPump()
	}
}

func (l *loop) askPump() {
	if !l.pump.asked {
		l.pump.asked = true
		l.server.writable.ask(l)
	}
}

// runPump gives turns to those who wait for one, and has itself called again if that took too long. It runs on the loop.
func (l *loop) runPump() {
	p := &l.pump
	p.asked, p.running = false, true
	begin, served := time.Now(), 0
	for served < len(p.ready) && time.Since(begin) < pumpFor {
		c := p.ready[served]
		served++
		if c.queued = false; c.gone {
			continue
		}
		if l.server.traffic(c) == gnet.Close {
			_ = l.gloop.Close(c.g)
		}
	}
	p.running = false
	if p.ready = slices.Delete(p.ready, 0, served); len(p.ready) > 0 {
		l.askPump()
	}
}
