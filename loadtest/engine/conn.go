package engine

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/failure"
)

// MaxFrame is the longest answer accepted, in bytes: Kafka's own limit for a request.
const MaxFrame = 100 << 20

// Handler is told what happens on a connection. Its methods may send, close and dial the same or other connections of
// the loop.
type Handler interface {
	// Connected says that the TCP connection stands.
	Connected(c *Conn)
	// Frame hands over one whole frame without its length. The bytes are valid during the call.
	Frame(c *Conn, frame []byte)
	// Failed says that the connection ended, other than by Close or by a Dial or Send that returned its failure. It is
	// closed already. Closed with nothing outstanding is how a server ends an idle connection.
	Failed(c *Conn, why failure.Class)
}

type state uint8

const (
	idle state = iota
	connecting
	established
)

// Conn is a client connection that can be dialled again after it has closed. It closes with a reset, which leaves no
// TIME_WAIT behind to run this machine out of ports.
type Conn struct {
	loop       *Loop
	handler    Handler
	fd         int
	slot       int32
	generation int32 // of the slot's use by this connection: tells a late event of an earlier dial from one of this
	state      state
	paused     bool   // reads only when told to
	in         []byte // start of an incomplete frame, with its length
	out        []byte // what the socket did not take yet
	deadline   Timer
	taken      uint64

	// ReceiveBuffer, when above 0, is the kernel's buffer for what the peer sends, in bytes, from the next Dial on: what a
	// slow reader does not read then stays with the peer.
	ReceiveBuffer int
}

// NewConn returns a connection that is not dialled.
func (l *Loop) NewConn(h Handler) *Conn {
	c := &Conn{loop: l, handler: h, fd: -1}
	c.deadline.init(l, c.expired)
	return c
}

// Dial begins to connect from a local address (nil: the kernel's choice); Connected or Failed follows. A failure that is
// known at once is returned instead of told to the handler. Dialling an open connection closes it first.
func (c *Conn) Dial(from unix.Sockaddr, to *Target) failure.Class {
	c.Close()
	fd, err := unix.Socket(to.fam, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failure.OfConnect(err)
	}
	if c.ReceiveBuffer > 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, c.ReceiveBuffer)
	}
	if err == nil {
		err = connect(fd, from, to)
	}
	if err != nil {
		_ = unix.Close(fd)
		return failure.OfConnect(err)
	}
	c.attach(fd)
	// Edge-triggered, once for the connection's life: a modification per request would cost a system call.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: c.slot, Pad: c.generation}
	if err := unix.EpollCtl(c.loop.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		c.Close()
		return failure.OfConnect(err)
	}
	c.state = connecting
	return failure.None
}

func connect(fd int, from unix.Sockaddr, to *Target) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if from != nil && to.fam == unix.AF_INET {
		// The port is chosen at connect, when the target is known: 28,000 per source and target instead of per source.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, from); err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, to.sa); err != nil && err != unix.EINPROGRESS {
		return err
	}
	return nil
}

func (c *Conn) attach(fd int) {
	l := c.loop
	c.fd = fd
	if n := len(l.free); n > 0 {
		c.slot = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		c.slot = int32(len(l.conns))
		l.conns = append(l.conns, nil)
	}
	l.conns[c.slot] = c
	l.open++
}

// Close resets the connection; the handler is not told. Closing a closed connection does nothing.
func (c *Conn) Close() {
	if c.fd < 0 {
		return
	}
	_ = unix.Close(c.fd) // also takes it out of the epoll set
	c.fd = -1
	c.state = idle
	c.generation++
	c.paused = false
	c.in, c.out = reuse(c.in), reuse(c.out)
	c.deadline.Stop()
	l := c.loop
	l.conns[c.slot] = nil
	l.free = append(l.free, c.slot)
	l.open--
}

// reuse empties a buffer, and gives up one so large that thousands of connections must not each keep it.
func reuse(b []byte) []byte {
	const keep = 128 << 10
	if cap(b) > keep {
		return nil
	}
	return b[:0]
}

// Deadline closes the connection as timed out at that time; Never takes the limit off.
func (c *Conn) Deadline(at Time) { c.deadline.Set(at) }

func (c *Conn) expired() {
	if c.fd >= 0 {
		c.fail(failure.Timeout)
	}
}

func (c *Conn) fail(why failure.Class) {
	c.Close()
	c.handler.Failed(c, why)
}

// Send writes bytes, keeping what the socket does not take now. On a failure the connection is closed and the handler is
// not told.
func (c *Conn) Send(b []byte) failure.Class {
	if c.state != established {
		return failure.Closed
	}
	if len(c.out) > 0 {
		c.out = append(c.out, b...)
		return failure.None
	}
	n, err := write(c.fd, b)
	if err != nil {
		c.Close()
		return failure.OfStream(err)
	}
	c.out = append(c.out, b[n:]...)
	return failure.None
}

// write returns how much the socket took; a full socket is no error.
func write(fd int, b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(fd, b[done:])
		switch err {
		case nil:
			done += n
		case unix.EINTR:
		case unix.EAGAIN:
			return done, nil
		default:
			return done, err
		}
	}
	return done, nil
}

// Pause stops reading until the connection closes, apart from Read: what arrives fills the kernel's buffers, as with a
// slow reader. That the peer resets the connection is still noticed.
func (c *Conn) Pause() { c.paused = true }

// Taken is how many bytes have been read, over all of the connection's lives.
func (c *Conn) Taken() uint64 { return c.taken }

// Read takes at most limit bytes off a paused connection's socket and hands on the frames that they complete.
func (c *Conn) Read(limit int) {
	if c.state == established && limit > 0 {
		c.read(c.loop.buf[:min(limit, len(c.loop.buf))], true)
	}
}

// ready handles the events that the kernel reported.
func (c *Conn) ready(events uint32) {
	if c.state == connecting {
		if !c.finishConnect(events) {
			return
		}
	}
	generation := c.generation
	if len(c.out) > 0 && events&unix.EPOLLOUT != 0 && !c.flush() {
		return
	}
	const readable = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if c.generation != generation || events&readable == 0 {
		return
	}
	if c.paused {
		if code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			c.fail(failure.OfStream(unix.Errno(code)))
		}
		return
	}
	// With a hang-up the stream must be read to its end, for there is no further event.
	for c.generation == generation && c.state == established && !c.paused {
		if !c.read(c.loop.buf, events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0) {
			return
		}
	}
}

// finishConnect reports whether the connection stands and still is the same after its handler was told.
func (c *Conn) finishConnect(events uint32) bool {
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) == 0 {
		return false
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		if code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			c.fail(failure.OfConnect(unix.Errno(code)))
			return false
		}
	}
	c.state = established
	generation := c.generation
	c.handler.Connected(c)
	return c.generation == generation
}

// flush reports whether the connection is still usable.
func (c *Conn) flush() bool {
	n, err := write(c.fd, c.out)
	if err != nil {
		c.fail(failure.OfStream(err))
		return false
	}
	c.out = c.out[:copy(c.out, c.out[n:])]
	return true
}

// read does one read and hands on what it completes. It reports whether there may be more: whole says that only the end
// of the stream, or an empty socket, is the last.
func (c *Conn) read(buf []byte, whole bool) (more bool) {
	n, err := unix.Read(c.fd, buf)
	switch {
	case err == unix.EINTR:
		return true
	case err == unix.EAGAIN:
		return false
	case err != nil:
		c.fail(failure.OfStream(err))
		return false
	case n == 0:
		why := failure.Closed
		if len(c.in) > 0 {
			why = failure.Short
		}
		c.fail(why)
		return false
	}
	c.taken += uint64(n)
	c.feed(buf[:n])
	return whole || n == len(buf)
}

// feed splits the stream into frames.
func (c *Conn) feed(data []byte) {
	generation := c.generation
	kept := len(c.in) > 0
	if kept {
		c.in = append(c.in, data...)
		data = c.in
	}
	for len(data) >= 4 {
		size := int(int32(binary.BigEndian.Uint32(data)))
		if size < 4 || size > MaxFrame {
			c.fail(failure.Malformed)
			return
		}
		if len(data) < 4+size {
			break
		}
		c.handler.Frame(c, data[4:4+size])
		if c.generation != generation {
			return
		}
		data = data[4+size:]
	}
	switch {
	case kept && len(data) == 0:
		c.in = reuse(c.in)
	case kept:
		c.in = c.in[:copy(c.in, data)]
	default:
		c.in = append(c.in, data...)
	}
}
