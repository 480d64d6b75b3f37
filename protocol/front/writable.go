package front

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// writable tells connections when their sockets take bytes again. gnet has no such callback, so this is an epoll set of
// its own, for the few connections that have something left to write: one shot each, ended by closing the socket.
type writable struct {
	epoll, stop int

	mu    sync.Mutex
	conns map[int32]*conn
}

func newWritable() (*writable, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll for blocked writers: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(stop)})
	}
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("eventfd for blocked writers: %w", err)
	}
	return &writable{epoll: epoll, stop: stop, conns: map[int32]*conn{}}, nil
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
			if int(events[i].Fd) == w.stop {
				_ = unix.Close(w.epoll)
				_ = unix.Close(w.stop)
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

func (w *writable) close() {
	_, _ = unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// abandon frees a watch that never ran.
func (w *writable) abandon() {
	_ = unix.Close(w.epoll)
	_ = unix.Close(w.stop)
}
