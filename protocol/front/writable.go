package front

import (
	"context"
	"fmt"
	"sync"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"
)

// writable tells connections when their sockets take bytes again. gnet has no such callback, so this is an epoll set of
// its own, for the few connections that have something left to write: one shot each, ended by closing the socket.
type writable struct {
	epoll, event int

	mu     sync.Mutex
	conns  map[int32]*conn
	asking []*loop // for their pumps to run
	closed bool
}

func newWritable() (*writable, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll for blocked writers: %w", err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)})
	}
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("eventfd for blocked writers: %w", err)
	}
	return &writable{epoll: epoll, event: event, conns: map[int32]*conn{}}, nil
}

// arm asks for one wake of c once its socket has room.
func (w *writable) arm(c *conn) error {
	fd := c.g.Fd()
	ev := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(fd)}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known := w.conns[ev.Fd]
	w.conns[ev.Fd] = c
	if known {
		return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_MOD, fd, &ev)
	}
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
}

// forget ends the watch over c, before its socket is closed and its number given to another.
func (w *writable) forget(c *conn) {
	fd := c.g.Fd()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns[int32(fd)] == c {
		delete(w.conns, int32(fd))
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// run wakes connections until close.
func (w *writable) run() {
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			return
		}
		for i := range max(n, 0) {
			if int(events[i].Fd) == w.event {
				if w.pass() {
					continue
				}
				w.abandon()
				return
			}
			w.mu.Lock()
			c := w.conns[events[i].Fd]
			w.mu.Unlock()
			if c != nil {
				_ = c.g.Wake(nil)
			}
		}
	}
}

// ask has l's pump run in l's next round. (A task from the loop itself would run in this one: gnet drains its queue.)
func (w *writable) ask(l *loop) {
	w.mu.Lock()
	w.asking = append(w.asking, l)
	w.mu.Unlock()
	w.signal()
}

// pass passes on what loops have asked for, and returns false after close.
func (w *writable) pass() bool {
	var counted [8]byte
	_, _ = unix.Read(w.event, counted[:])
	w.mu.Lock()
	asking, closed := w.asking, w.closed
	w.asking = nil
	w.mu.Unlock()
	for _, l := range asking {
		_ = l.gloop.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
			l.runPump()
			return nil
		}))
	}
	return !closed
}

func (w *writable) signal() { _, _ = unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (w *writable) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
}

// abandon frees a watch that never ran.
func (w *writable) abandon() {
	_ = unix.Close(w.epoll)
	_ = unix.Close(w.event)
}
