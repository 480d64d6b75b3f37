package front

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/session"
)

// kvip writes to the socket itself: gnet copies what the socket does not take, without a limit, edits the slices that it
// is given, and never says when the socket has room again (docs/adr/0002).

// maxParts is how many parts go into one vectored write; the kernel takes 1024.
const maxParts = 512

// How much a socket may hold that is not even on its way. What a peer does not read stays in the kernel, which by itself
// lets that grow to megabytes (tcp_wmem). A peer starts with little, and each time it has read, it is given twice as much:
// that saves wakes, and those who do not read never get there. What is on its way is not bounded by this, so that it
// does not slow down distant readers, as SO_SNDBUF would.
const (
	unsentFirst = 64 << 10
	unsentMost  = 4 << 20 // as much as the kernel takes by default
)

// flush writes what the loop has collected for c, and keeps what the socket does not take or what is for later turns.
func (c *conn) flush(now snapshot.Time) {
	l := c.loop
	var n int
	var full bool
	var err error
	if b := l.out.Whole(); b != nil { // most answers
		n, full, err = l.writeOne(c.g.Fd(), b)
	} else {
		bulk := l.out.Referred() >= bulkFrom
		if bulk && c.unsent == 0 {
			c.allow(unsentFirst)
		}
		if !bulk || l.pump.affords(now) {
			l.parts = l.out.Parts(l.parts[:0])
			n, full, err = l.write(c.g.Fd(), l.parts, c.turn())
		}
		if bulk {
			l.pump.written += n
		}
	}
	switch {
	case err != nil:
		c.end = session.ReasonReset
	case n < l.out.Len():
		var copied int
		if c.rest, copied = l.out.Rest(n); copied > l.server.limits.OutboundBytes {
			c.rest, c.end = answer.Rest{}, session.ReasonOutbound
			return
		}
		l.ages.move(c, stalled, now)
		c.wait(full)
	}
}

// wait has c go on when its socket has room, or when it is its turn again.
func (c *conn) wait(full bool) {
	if full {
		c.full = true
		c.arm()
		return
	}
	c.loop.enqueue(c)
}

// allow sets how much c's socket may hold unsent.
func (c *conn) allow(n int32) {
	c.unsent = n
	_ = unix.SetsockoptInt(c.g.Fd(), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, int(n)) // without it, more is held
}

// resume goes on with an answer that the socket did not take whole, and says whether it is out now.
func (c *conn) resume(now snapshot.Time) bool {
	l := c.loop
	if c.queued || !l.pump.affords(now) {
		l.enqueue(c)
		return false
	}
	l.parts = c.rest.Parts(l.parts[:0], maxParts)
	n, full, err := l.write(c.g.Fd(), l.parts, c.turn())
	l.pump.written += n
	if err != nil {
		c.rest, c.end = answer.Rest{}, session.ReasonReset
		return false
	}
	if n > 0 {
		l.ages.move(c, stalled, now)
		if c.full && c.unsent > 0 && c.unsent < unsentMost {
			c.allow(2 * c.unsent)
		}
		c.full = false
	}
	if c.rest.Advance(n); !c.rest.Empty() {
		c.wait(full)
		return false
	}
	return true
}

func (c *conn) arm() {
	if err := c.loop.server.writable.arm(c); err != nil {
		c.rest, c.end = answer.Rest{}, session.ReasonReset
	}
}

// turn is how many bytes c writes before others have theirs: as many as its socket may hold for a peer that reads, as the
// kernel sends what it got in one call for less.
func (c *conn) turn() int { return max(turnBytes, int(c.unsent)) }

// write writes parts until all is out, the socket is full or turn bytes are, and returns how many bytes went out. The
// socket never blocks, so the system calls need not tell the scheduler.
func (l *loop) write(fd int, parts [][]byte, turn int) (total int, full bool, err error) {
	for len(parts) > 0 && total < turn {
		l.iov = l.iov[:0]
		size, i := 0, 0
		for ; i < len(parts) && i < maxParts && size < turn; i++ {
			if p := parts[i]; len(p) > 0 {
				l.iov = append(l.iov, unix.Iovec{Base: &p[0], Len: uint64(len(p))})
				size += len(p)
			}
		}
		parts = parts[i:]
		if size == 0 {
			continue
		}
		n, errno := writev(fd, l.iov)
		switch errno {
		case 0:
		case unix.EAGAIN:
			return total, true, nil
		default:
			return total, false, errno
		}
		if total += n; n < size {
			return total, true, nil
		}
	}
	return total, false, nil
}

// writeOne writes one piece, as write does.
func (l *loop) writeOne(fd int, b []byte) (n int, full bool, err error) {
	switch n, errno := call(unix.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(b)), len(b)); errno {
	case 0:
		return n, n < len(b), nil
	case unix.EAGAIN:
		return 0, true, nil
	default:
		return 0, false, errno
	}
}

func writev(fd int, iov []unix.Iovec) (int, unix.Errno) {
	return call(unix.SYS_WRITEV, fd, unsafe.Pointer(unsafe.SliceData(iov)), len(iov))
}

func call(trap uintptr, fd int, p unsafe.Pointer, n int) (int, unix.Errno) {
	for {
		done, _, errno := unix.RawSyscall(trap, uintptr(fd), uintptr(p), uintptr(n))
		if errno != unix.EINTR {
			return int(done), errno
		}
	}
}
