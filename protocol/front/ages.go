package front

import "github.com/kvip/kvip/backends/snapshot"

// class is what a connection is doing, as far as deadlines and eviction care.
type class uint8

const (
	// silent: open, nothing sent yet.
	silent class = iota
	// partial: part of a frame is here.
	partial
	// booting: has sent requests, but had no lookup answered yet, and is at rest.
	booting
	// quiet: has what it came for and is at rest: the first to go when the table is full. There are several lists of it,
	// each with its own idle time, so that every list is in the order of its deadlines.
	quiet
	// stalled: an answer waits for the peer to read.
	stalled = quiet + quietLists
	// held: a request waits for the first snapshot.
	held = stalled + 1
	// busy: a request is with a broker, which has deadlines of its own.
	busy    = held + 1
	classes = busy + 1
)

// quietLists is how many different idle times there are, spread evenly over +-10%.
const quietLists = 8

// ages has the connections of one loop, by class, each list in the order of since: its head is the oldest. Moving a
// connection is O(1), and a deadline or an eviction looks at heads only.
type ages [classes]struct{ head, tail *conn }

// move puts c at the tail of a list, its time in the class starting now.
func (a *ages) move(c *conn, to class, now snapshot.Time) {
	a.remove(c)
	l := &a[to]
	c.class, c.since, c.listed = to, now, true
	c.prev, c.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = c
	} else {
		l.head = c
	}
	l.tail = c
}

func (a *ages) remove(c *conn) {
	if !c.listed {
		return
	}
	l := &a[c.class]
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.tail = c.prev
	}
	c.prev, c.next, c.listed = nil, nil, false
}

// oldestQuiet returns the quiet connection that has been at rest longest, or nil.
func (a *ages) oldestQuiet() *conn {
	var oldest *conn
	for i := range quietLists {
		if c := a[quiet+class(i)].head; c != nil && (oldest == nil || c.since < oldest.since) {
			oldest = c
		}
	}
	return oldest
}

// victim returns the connection to close for a newcomer, or nil: the oldest quiet one, else whoever has had time enough
// to send something and did not.
func (a *ages) victim(l *Limits, now snapshot.Time) *conn {
	if c := a.oldestQuiet(); c != nil {
		return c
	}
	if c := a[silent].head; c != nil && now.Sub(c.since) >= l.SilentGrace {
		return c
	}
	if c := a[partial].head; c != nil && now.Sub(c.since) >= l.PartialGrace {
		return c
	}
	if c := a[booting].head; c != nil && now.Sub(c.since) >= l.BootGrace {
		return c
	}
	return nil
}

// leaver returns the next connection to close in a drain, or nil: the oldest quiet one, else one that has sent nothing, else
// one whose first lookup is not on the way any more.
func (a *ages) leaver(l *Limits, now snapshot.Time) *conn {
	if c := a.oldestQuiet(); c != nil {
		return c
	}
	if c := a[silent].head; c != nil {
		return c
	}
	if c := a[booting].head; c != nil && now.Sub(c.since) >= l.BootGrace {
		return c
	}
	return nil
}
