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
	for !c.rest.Empty() {
		l.parts = c.rest.Parts(l.parts[:0], maxParts)
		size := 0
		for _, p := range l.parts {
			size += len(p)
		}
		n, err := l.write(c.g.Fd(), l.parts)
		if err != nil {
			c.rest, c.end = answer.Rest{}, session.ReasonReset
			return false
		}
		c.rest.Advance(n)
		if n > 0 {
			l.ages.move(c, stalled, now)
		}
		if n < size {
			c.arm()
			return false
		}
	}
	return true
}

func (c *conn) arm() {
	if err := c.loop.server.writable.arm(c); err != nil {
		c.rest, c.end = answer.Rest{}, session.ReasonReset
	}
}

// write writes parts until all is out or the socket is full, and returns how many bytes went out. The socket never
// blocks, so the system calls need not tell the scheduler.
func (l *loop) write(fd int, parts [][]byte) (int, error) {
	total := 0
	for len(parts) > 0 {
		batch := parts[:min(len(parts), maxParts)]
		l.iov = l.iov[:0]
		size := 0
		for _, p := range batch {
			if len(p) == 0 {
				continue
			}
			l.iov = append(l.iov, unix.Iovec{Base: &p[0], Len: uint64(len(p))})
			size += len(p)
		}
		if size == 0 {
			parts = parts[len(batch):]
			continue
		}
		var n uintptr
		var errno unix.Errno
		if len(l.iov) == 1 { // most answers: a plain write is a little cheaper
			n, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(l.iov[0].Base)), uintptr(l.iov[0].Len))
		} else {
			n, _, errno = unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&l.iov[0])), uintptr(len(l.iov)))
		}
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return total, nil
		default:
			return total, errno
		}
		total += int(n)
		if int(n) < size {
			return total, nil
		}
		parts = parts[len(batch):]
	}
	return total, nil
}
