package engine

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/kvip/kvip/loadtest/failure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a loop until the test ends and calls f on it.
func start(t *testing.T, f func(l *Loop)) {
	t.Helper()
	l, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	l.Do(func() { f(l) })
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if l.Open() != 0 || l.Do(func() {}) {
			t.Errorf("after its end the loop holds %d connections, or still takes tasks", l.Open())
		}
	})
}

// serve accepts one connection after the other and hands each to f.
func serve(t *testing.T, f func(*net.TCPConn)) *Target {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f(c.(*net.TCPConn))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return NewTarget(ln.Addr().(*net.TCPAddr).AddrPort())
}

// log is a handler that sends a request when connected and reports what comes.
type log struct {
	frames chan string
	failed chan failure.Class
	then   func(c *Conn)
}

func newLog() *log {
	return &log{frames: make(chan string, 1000), failed: make(chan failure.Class, 10)}
}

func (h *log) Connected(c *Conn) { c.Send([]byte("ask")) }
func (h *log) Frame(c *Conn, frame []byte) {
	h.frames <- string(frame)
	if h.then != nil {
		h.then(c)
	}
}
func (h *log) Failed(_ *Conn, why failure.Class) { h.failed <- why }

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func receive[T any](t *testing.T, from chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing within 10 s")
		panic("unreachable")
	}
}

func TestFramesAreWholeWhereverTheStreamIsSplit(t *testing.T) {
	stream := slices.Concat(frame("first"), frame("second answer"), frame("3333"))
	var split atomic.Int32
	target := serve(t, func(c *net.TCPConn) {
		cut := split.Load()
		_, _ = io.ReadFull(c, make([]byte, 3))
		_, _ = c.Write(stream[:cut])
		if cut > 0 {
			time.Sleep(2 * time.Millisecond) // a real split: the loop reads the first part by itself
		}
		_, _ = c.Write(stream[cut:])
		_, _ = c.Read(make([]byte, 1)) // until the client closes
	})
	for cut := range stream {
		split.Store(int32(cut))
		h := newLog()
		start(t, func(l *Loop) {
			count := 0
			h.then = func(c *Conn) {
				if count++; count == 3 {
					c.Close()
					h.failed <- failure.None
				}
			}
			l.NewConn(h).Dial(nil, target)
		})
		if why := receive(t, h.failed); why != failure.None {
			t.Fatalf("cut at %d: %s", cut, why)
		}
		close(h.frames)
		var got []string
		for f := range h.frames {
			got = append(got, f)
		}
		if !slices.Equal(got, []string{"first", "second answer", "3333"}) {
			t.Fatalf("cut at %d: got %q", cut, got)
		}
	}
}

func TestAnAnswerLargerThanAnyBufferArrivesWhole(t *testing.T) {
	body := string(make([]byte, 3<<20))
	target := serve(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 3))
		_, _ = c.Write(frame(body))
		_, _ = c.Read(make([]byte, 1))
	})
	h := newLog()
	start(t, func(l *Loop) { l.NewConn(h).Dial(nil, target) })
	if got := receive(t, h.frames); got != body {
		t.Errorf("got %d bytes, sent %d", len(got), len(body))
	}
}

func TestEveryWayToEndAConnectionHasItsName(t *testing.T) {
	ask := func(c *net.TCPConn) { _, _ = io.ReadFull(c, make([]byte, 3)) }
	for _, c := range []struct {
		name string
		peer func(*net.TCPConn)
		want failure.Class
	}{
		{"closed without an answer", ask, failure.Closed},
		{"closed inside the length", func(c *net.TCPConn) { ask(c); _, _ = c.Write([]byte{0, 0}) }, failure.Short},
		{"closed inside the answer", func(c *net.TCPConn) { ask(c); _, _ = c.Write(frame("answer")[:7]) }, failure.Short},
		{"reset", func(c *net.TCPConn) { ask(c); _ = c.SetLinger(0) }, failure.Reset},
		{"reset before the request is read", func(c *net.TCPConn) { _ = c.SetLinger(0) }, failure.Reset},
		{"length of no frame", func(c *net.TCPConn) { ask(c); _, _ = c.Write([]byte{0x7f, 0xff, 0xff, 0xff}) }, failure.Malformed},
		{"silence", func(c *net.TCPConn) { ask(c); _, _ = c.Read(make([]byte, 1)) }, failure.Timeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := serve(t, c.peer)
			h := newLog()
			start(t, func(l *Loop) {
				conn := l.NewConn(h)
				conn.Dial(nil, target)
				if c.want == failure.Timeout {
					conn.Deadline(Now().Add(50 * time.Millisecond))
				}
			})
			if got := receive(t, h.failed); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestNobodyListeningIsRefused(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := NewTarget(ln.Addr().(*net.TCPAddr).AddrPort())
	_ = ln.Close()
	h := newLog()
	start(t, func(l *Loop) {
		if why := l.NewConn(h).Dial(nil, target); why != failure.None {
			h.failed <- why
		}
	})
	if got := receive(t, h.failed); got != failure.Refused {
		t.Errorf("got %s, want refused", got)
	}
}

func TestAConnectionIsDialledAgainFromItsOwnHandler(t *testing.T) {
	const times = 200
	target := serve(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 3))
		_, _ = c.Write(slices.Concat(frame("answer"), frame("late: belongs to a connection that is gone")))
		_, _ = c.Read(make([]byte, 1))
	})
	sources, err := NewSources(netip.MustParsePrefix("127.99.0.0/16"), 0, 7)
	if err != nil {
		t.Fatal(err)
	}
	h := newLog()
	start(t, func(l *Loop) {
		h.then = func(c *Conn) { c.Dial(sources.Next(), target) }
		l.NewConn(h).Dial(sources.Next(), target)
	})
	for range times {
		if got := receive(t, h.frames); got != "answer" {
			t.Fatalf("got %q", got)
		}
	}
}

func TestAPausedConnectionReadsNoMoreThanItIsTold(t *testing.T) {
	target := serve(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 3))
		_, _ = c.Write(slices.Concat(frame("one"+"1"), frame("two"+"2")))
		_, _ = c.Read(make([]byte, 1))
	})
	h := newLog()
	var conn *Conn
	start(t, func(l *Loop) {
		conn = l.NewConn(h)
		conn.Dial(nil, target)
		conn.Pause()
		var drip *Timer
		drip = l.NewTimer(func() {
			conn.Read(8)
			if len(h.frames) == 0 {
				drip.Set(Now().Add(time.Millisecond))
			}
		})
		drip.Set(Now().Add(time.Millisecond))
	})
	if got := receive(t, h.frames); got != "one1" {
		t.Errorf("got %q", got)
	}
	if n := len(h.frames); n != 0 {
		t.Errorf("%d frames more than the bytes read hold", n)
	}
}

func TestSourcesGoRoundAndStayInTheirPrefix(t *testing.T) {
	s, err := NewSources(netip.MustParsePrefix("127.64.0.0/10"), 254, 3)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 4 {
		a := s.Next().(*unix.SockaddrInet4)
		got = append(got, netip.AddrFrom4(a.Addr).String())
	}
	if want := []string{"127.64.0.255", "127.64.1.0", "127.64.1.1", "127.64.0.255"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := NewSources(netip.MustParsePrefix("127.64.0.0/30"), 0, 4); err == nil {
		t.Error("four addresses out of a /30 were given")
	}
}

// TestTimersFireAsAListWould holds the lazy heap against a plain map of due times.
func TestTimersFireAsAListWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, fired := &Loop{}, map[int]int{}
		due, want := map[int]Time{}, map[int]int{}
		timers := make([]*Timer, rapid.IntRange(1, 20).Draw(t, "timers"))
		for i := range timers {
			timers[i] = l.NewTimer(func() { fired[i]++ })
		}
		now := Time(0)
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			i := rapid.IntRange(0, len(timers)-1).Draw(t, "timer")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				at := now + Time(rapid.IntRange(0, 50).Draw(t, "in"))
				timers[i].Set(at)
				due[i] = at
			case 1:
				timers[i].Stop()
				delete(due, i)
			case 2:
				now += Time(rapid.IntRange(0, 30).Draw(t, "pass"))
				for timer := l.timers.pop(now); timer != nil; timer = l.timers.pop(now) {
					timer.fire()
				}
				for j, at := range due {
					if at <= now {
						want[j]++
						delete(due, j)
					}
				}
			}
			for j := range timers {
				if fired[j] != want[j] {
					t.Fatalf("at %d: timer %d fired %d times, want %d", now, j, fired[j], want[j])
				}
			}
		}
	})
}

// TestALoopsThreadIsGivenBackAsItWas: the runtime runs other goroutines on it afterwards.
func TestALoopsThreadIsGivenBackAsItWas(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr := func() unix.SchedAttr {
		a, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return *a
	}
	before := attr()
	l, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var during unix.SchedAttr
	l.Do(func() { during = attr(); cancel() })
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if after := attr(); after != before {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if before.Policy == unix.SCHED_NORMAL && before.Nice == 0 && during == before {
		t.Errorf("in the loop as outside: %+v", during)
	}
}

// TestWhatArrivesWhileTheLoopIsBusyHasWaited: the kernel reports it at once when it is asked, and it has lain there.
func TestWhatArrivesWhileTheLoopIsBusyHasWaited(t *testing.T) {
	const busy = 50 * time.Millisecond
	target := serve(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 3))
		_, _ = c.Write(frame("first"))
		time.Sleep(busy / 5) // the loop is busy with the first
		_, _ = c.Write(frame("second"))
		_, _ = c.Read(make([]byte, 1))
	})
	h := newLog()
	var delays []time.Duration
	start(t, func(l *Loop) {
		l.PollDelay = func(nanos int64) { delays = append(delays, time.Duration(nanos)) }
		count := 0
		h.then = func(c *Conn) {
			if count++; count == 1 {
				time.Sleep(busy)
			} else {
				h.failed <- failure.None
			}
		}
		l.NewConn(h).Dial(nil, target)
	})
	receive(t, h.failed)
	if longest := slices.Max(delays); longest < busy/2 {
		t.Errorf("waited %s", delays)
	}
}
