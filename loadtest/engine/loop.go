package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	readBuffer = 256 << 10 // one per loop: most answers are handed on without a copy
	batch      = 512       // events taken from the kernel at once
)

// Loop drives connections and timers on one thread.
type Loop struct {
	ep, wakeFD int
	conns      []*Conn // by slot
	free       []int32
	open       int
	timers     heap
	buf        []byte
	events     [batch]unix.EpollEvent
	early      Time // by how much waking is late
	empty      Time // when the kernel had no event left

	// PollDelay, when set, is told for each event how long it may have waited until it was handled, because the loop was at
	// others: lag that a latency contains and the target is not to blame for.
	PollDelay func(nanos int64)

	mu    sync.Mutex
	tasks []func()
	ended bool
}

// NewLoop takes an epoll instance and an eventfd. Close gives them back when Run was never called; Run does so itself.
func NewLoop() (*Loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &ev); err != nil {
		_ = unix.Close(ep)
		_ = unix.Close(wake)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Loop{ep: ep, wakeFD: wake, buf: make([]byte, readBuffer)}, nil
}

// Do runs f on the loop's thread, soon. It may be called from any goroutine; it reports false, and drops f, once the loop
// has ended.
func (l *Loop) Do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.tasks = append(l.tasks, f)
	if len(l.tasks) == 1 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		_, _ = unix.Write(l.wakeFD, one[:]) // fails only when the counter is full, and then the loop wakes anyway
	}
	return true
}

// Open is the number of connections that hold a descriptor.
func (l *Loop) Open() int { return l.open }

// Run drives the loop until ctx ends; then it closes every connection without telling its handler. Its error is a system
// call that failed, never a connection's.
func (l *Loop) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer l.Close()
	defer hurry()()
	l.empty = Now()
	stop := context.AfterFunc(ctx, func() { l.Do(func() {}) })
	defer stop()
	for ctx.Err() == nil {
		n, since, err := l.wait()
		if err != nil {
			return fmt.Errorf("epoll wait: %w", err)
		}
		for i := range l.events[:n] {
			ev := &l.events[i]
			if ev.Fd < 0 {
				l.runTasks()
				continue
			}
			now := Now()
			if c := l.conns[ev.Fd]; c != nil && c.generation == ev.Pad {
				if l.PollDelay != nil {
					l.PollDelay(int64(now - since))
				}
				c.ready(ev.Events)
			}
			if l.timers.next() <= now { // what is due must not wait for a whole batch
				l.fireTimers()
			}
		}
		l.fireTimers()
	}
	return nil
}

// fireTimers calls what is due, but not what is armed meanwhile: timers must not starve connections.
func (l *Loop) fireTimers() {
	now := Now()
	for range batch {
		t := l.timers.pop(now)
		if t == nil {
			return
		}
		t.fire()
	}
}

// mostEarly bounds how long before a timer is due the thread stops sleeping and polls.
const mostEarly = Time(100 * time.Microsecond)

// wait blocks until an event or the next timer, and returns the number of events, and since when they may have been there.
// It stops sleeping as much earlier as this machine wakes threads late.
func (l *Loop) wait() (n int, since Time, err error) {
	for {
		var none unix.Timespec
		n, err := l.poll(&none)
		now := Now()
		if n > 0 || err != nil {
			since := l.empty // they came while others were handled
			if n < batch {
				l.empty = now
			}
			return n, since, err
		}
		l.empty = now
		next := l.timers.next()
		sleep := next - l.early - now
		switch {
		case next <= now:
			return 0, now, nil
		case next == Never:
			n, err = l.poll(nil)
		case sleep <= 0:
			continue
		default:
			timeout := unix.NsecToTimespec(int64(sleep))
			n, err = l.poll(&timeout)
		}
		woke := Now()
		if n > 0 || err != nil {
			l.empty = woke
			return n, woke, err
		}
		if next != Never {
			l.early += (min(max(woke-now-sleep, 0), mostEarly) - l.early) / 8
		}
	}
}

// poll takes events from the kernel, waiting for the first at most as long as timeout; nil: for ever.
func (l *Loop) poll(timeout *unix.Timespec) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(l.ep), uintptr(unsafe.Pointer(&l.events[0])), batch,
		uintptr(unsafe.Pointer(timeout)), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	}
	return 0, errno
}

func (l *Loop) runTasks() {
	var drained [8]byte
	_, _ = unix.Read(l.wakeFD, drained[:])
	l.mu.Lock()
	tasks := l.tasks
	l.tasks = nil
	l.mu.Unlock()
	for _, f := range tasks {
		f()
	}
}

// Close closes every connection and the loop's descriptors. Handlers are not told.
func (l *Loop) Close() {
	l.mu.Lock()
	ended := l.ended
	l.ended, l.tasks = true, nil
	l.mu.Unlock()
	if ended {
		return
	}
	for _, c := range l.conns {
		if c != nil {
			c.Close()
		}
	}
	_ = unix.Close(l.wakeFD)
	_ = unix.Close(l.ep)
}
