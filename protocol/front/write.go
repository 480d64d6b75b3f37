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

// turnBytes is about how much one connection writes before others of its loop have their turn.
const turnBytes = 1 << 20

// flush writes what the loop has collected for c, and keeps what the socket does not take.
func (c *conn) flush(now snapshot.Time) {
	l := c.loop
	l.parts = l.out.Parts(l.parts[:0])
	n, err := l.write(c.g.Fd(), l.parts)
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
		c.arm()
	}
}

// resume goes on with an answer that the socket did not take whole, and says whether it is out now.
func (c *conn) resume(now snapshot.Time) bool {
	l := c.loop
	l.parts = c.rest.Parts(l.parts[:0], maxParts)
	n, err := l.write(c.g.Fd(), l.parts)
	if err != nil {
		c.rest, c.end = answer.Rest{}, session.ReasonReset
		return false
	}
	if n > 0 {
		l.ages.move(c, stalled, now)
	}
	if c.rest.Advance(n); !c.rest.Empty() {
		c.arm()
		return false
	}
	return true
}

func (c *conn) arm() {
	if err := c.loop.server.writable.arm(c); err != nil {
		c.rest, c.end = answer.Rest{}, session.ReasonReset
	}
}

// write writes parts until all is out, the socket is full or the turn is over, and returns how many bytes went out. The
// socket never blocks, so the system calls need not tell the scheduler.
func (l *loop) write(fd int, parts [][]byte) (total int, err error) {
	for len(parts) > 0 && total < turnBytes {
		l.iov = l.iov[:0]
		size, i := 0, 0
		for ; i < len(parts) && i < maxParts && size < turnBytes; i++ {
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
			return total, nil
		default:
			return total, errno
		}
		if total += n; n < size {
			return total, nil
		}
	}
	return total, nil
}

func writev(fd int, iov []unix.Iovec) (int, unix.Errno) {
	for {
		var n uintptr
		var errno unix.Errno
		if len(iov) == 1 { // most answers: a plain write is a little cheaper
			n, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(iov[0].Base)), uintptr(iov[0].Len))
		} else {
			n, _, errno = unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		}
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
