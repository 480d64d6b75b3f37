package front

import (
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/session"
)

// loop is what one event loop owns: no lock is needed for any of it.
type loop struct {
	server *Server
	gloop  gnet.EventLoop
	ages   ages
	pump   pump
	out    *answer.Out
	stats  session.Stats
	tally  session.Tally
	parts  [][]byte
	iov    []unix.Iovec
	// nextQuiet deals the quiet lists, and with them the idle times, to newcomers.
	nextQuiet class
	closes    ring
	ticking   atomic.Bool // a tick is queued
}

func newLoop(s *Server, g gnet.EventLoop, seed uint64) *loop {
	l := &loop{server: s, gloop: g, out: answer.NewOut(seed)}
	l.tally.Stats = &l.stats
	return l
}

// tick closes what is past its deadline, and lets held requests look again. It runs on the loop.
func (l *loop) tick() {
	now, lim := snapshot.Now(), &l.server.limits
	l.expire(silent, now, lim.FirstByte, session.ReasonFirstByte)
	l.expire(partial, now, lim.Frame, session.ReasonFrame)
	l.expire(booting, now, lim.Idle, session.ReasonIdle)
	l.expire(stalled, now, lim.Stalled, session.ReasonStalled)
	for i := range class(quietLists) {
		// From 90% to 110% of the idle time.
		idle := lim.Idle*9/10 + lim.Idle/5*time.Duration(i)/(quietLists-1)
		l.expire(quiet+i, now, idle, session.ReasonIdle)
	}
	for c := l.ages[held].head; c != nil; {
		next := c.next
		if c.traffic() == gnet.Close {
			_ = l.gloop.Close(c.g)
		}
		c = next
	}
	l.release()
}

// release lets go of what was last written: a loop that has nothing to do would hold on to an old view's pages.
func (l *loop) release() {
	l.out.Reset()
	clear(l.parts[:cap(l.parts)])
	clear(l.iov[:cap(l.iov)])
}

func (l *loop) expire(of class, now snapshot.Time, after time.Duration, reason session.Reason) {
	for c := l.ages[of].head; c != nil && now.Sub(c.since) >= after; c = l.ages[of].head {
		c.close(reason)
	}
}

// makeRoom closes one connection for a newcomer, and says whether there was one to close.
func (l *loop) makeRoom(now snapshot.Time) bool {
	c := l.ages.victim(&l.server.limits, now)
	if c == nil {
		return false
	}
	c.close(session.ReasonEvicted)
	return true
}

// shed ends the connection of this loop that has held unserved bytes for longest, which may be c itself, the one whose
// bytes were too many: c ends by its own action.
func (l *loop) shed(c *conn) {
	victim := c
	for _, of := range []class{partial, stalled, busy, held} {
		for o := l.ages[of].head; o != nil; o = o.next {
			if o.buffered > 0 {
				if victim == c || o.since < victim.since {
					victim = o
				}
				break
			}
		}
	}
	if victim != c {
		victim.close(session.ReasonBuffered)
		return
	}
	c.rest = answer.Rest{}
	if c.end == session.ReasonNone {
		c.end = session.ReasonBuffered
	}
}

// leave closes up to n connections that have nothing more to wait for, oldest first. Those that are still bootstrapping
// get their answers first.
func (l *loop) leave(n int) {
	now := snapshot.Now()
	for range n {
		c := l.ages.leaver(&l.server.limits, now)
		if c == nil {
			return
		}
		c.close(session.ReasonDraining)
	}
}
