package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// frame is a request of key 10 with a client id and the body given.
func frame(correlation int32, body string) []byte {
	const client = "app"
	b := binary.BigEndian.AppendUint32(nil, uint32(8+2+len(client)+len(body)))
	b = append(b, 0, 10, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(correlation))
	b = binary.BigEndian.AppendUint16(b, uint16(len(client)))
	return append(append(b, client...), body...)
}

// answerTo is the echo of a request: its correlation id and everything after it.
func answerTo(request []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(request)-8))
	return append(b, request[8:]...)
}

func readFrame(c net.Conn) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, 4+binary.BigEndian.Uint32(size[:]))
	copy(b, size[:])
	_, err := io.ReadFull(c, b[4:])
	return b, err
}

// broker runs serve for each connection, with the number of the connection from 1.
type testBroker struct {
	addr  string
	conns atomic.Int32
}

func listen(t *testing.T, serve func(c net.Conn, n int32)) *testBroker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &testBroker{addr: l.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			n := b.conns.Add(1)
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				serve(c, n)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return b
}

// echo answers each request at once.
func echo(c net.Conn, _ int32) {
	for {
		req, err := readFrame(c)
		if err != nil {
			return
		}
		if _, err := c.Write(answerTo(req)); err != nil {
			return
		}
	}
}

func newPool(t *testing.T, o Options, addrs ...string) *Pool {
	t.Helper()
	p := New(o)
	p.Keep(addrs)
	t.Cleanup(p.Close)
	return p
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestOneRequestInFlightOnEachOfAFewConnections(t *testing.T) {
	var now, most atomic.Int32
	release := make(chan struct{})
	b := listen(t, func(c net.Conn, _ int32) {
		for {
			req, err := readFrame(c)
			if err != nil {
				return
			}
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-release
			// A second request on this connection would be here already.
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if extra, _ := c.Read(make([]byte, 1)); extra > 0 {
				t.Error("a second request was sent before the first was answered")
			}
			_ = c.SetReadDeadline(time.Time{})
			now.Add(-1)
			_, _ = c.Write(answerTo(req))
		}
	})
	p := newPool(t, Options{MaxConns: 3, MaxWaiting: 5}, b.addr)
	var wg sync.WaitGroup
	errs := make(chan error, 20)
	for i := range 8 {
		wg.Go(func() {
			_, err := p.Do(within(t, 10*time.Second), b.addr, frame(int32(i), "x"), true)
			errs <- err
		})
	}
	eventually(t, func() bool { return now.Load() == 3 && p.Waiting() == 5 })
	if _, err := p.Do(within(t, time.Second), b.addr, frame(9, "x"), true); !errors.Is(err, ErrFull) {
		t.Errorf("with a full queue: %v, want ErrFull", err)
	}
	if in, open := p.InFlight(b.addr), p.Conns(b.addr); in != 3 || open != 3 {
		t.Errorf("%d in flight on %d connections, want 3 on 3", in, open)
	}
	close(release)
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if m, n := most.Load(), b.conns.Load(); m != 3 || n != 3 {
		t.Errorf("at most %d requests at once on %d connections, want 3 on 3", m, n)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to that within 5 s")
		}
	}
}

// A broker whose quota mutes a connection answers late: that answer must meet nobody.
func TestALateAnswerMeetsNoSecondRequest(t *testing.T) {
	b := listen(t, func(c net.Conn, n int32) {
		req, err := readFrame(c)
		if err != nil {
			return
		}
		if n == 1 {
			time.Sleep(100 * time.Millisecond)
		}
		_, _ = c.Write(answerTo(req))
		_, _ = io.Copy(io.Discard, c)
	})
	p := newPool(t, Options{MaxConns: 1}, b.addr)
	if _, err := p.Do(within(t, 50*time.Millisecond), b.addr, frame(1, "late"), true); !errors.Is(err, ErrLate) {
		t.Fatalf("got %v, want ErrLate", err)
	}
	req := frame(2, "prompt")
	got, err := p.Do(within(t, time.Second), b.addr, req, true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(answerTo(req), got); diff != "" {
		t.Errorf("the second request's answer (-want +got):\n%s", diff)
	}
	if n := b.conns.Load(); n != 2 {
		t.Errorf("%d connections, want 2: the one with the late answer is not used again", n)
	}
}

func TestOnlyRegisteredBrokersAreDialled(t *testing.T) {
	b := listen(t, echo)
	p := newPool(t, Options{}, "127.0.0.1:1")
	var notSent *NotSentError
	_, err := p.Do(within(t, time.Second), b.addr, frame(1, "x"), true)
	if !errors.Is(err, ErrUnregistered) || !errors.As(err, &notSent) {
		t.Errorf("got %v, want ErrUnregistered as a NotSentError", err)
	}
	p.Keep([]string{b.addr})
	if _, err := p.Do(within(t, time.Second), b.addr, frame(1, "x"), true); err != nil {
		t.Error(err)
	}
	p.Keep(nil)
	if _, err := p.Do(within(t, time.Second), b.addr, frame(1, "x"), true); !errors.Is(err, ErrUnregistered) {
		t.Errorf("after it has left: %v, want ErrUnregistered", err)
	}
	if n := p.openTotal(); n != 0 {
		t.Errorf("%d connections are open after the broker has left", n)
	}
}

func (p *Pool) openTotal() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func TestANewConnectionIsCheckedBeforeItsFirstRequest(t *testing.T) {
	b := listen(t, func(c net.Conn, _ int32) {
		if req, err := readFrame(c); err == nil {
			t.Errorf("a request reached the broker: %x", req)
		}
	})
	foreign := errors.New("another cluster")
	p := newPool(t, Options{Check: func(context.Context, string, *Conn) error { return foreign }}, b.addr)
	var notSent *NotSentError
	if _, err := p.Do(within(t, time.Second), b.addr, frame(1, "x"), false); !errors.Is(err, foreign) || !errors.As(err, &notSent) {
		t.Errorf("got %v, want the check's error as a NotSentError", err)
	}
	if n := p.openTotal(); n != 0 {
		t.Errorf("%d connections are open", n)
	}
}

func TestTheTotalIsBounded(t *testing.T) {
	a, b, c := listen(t, echo), listen(t, echo), listen(t, echo)
	p := newPool(t, Options{MaxTotal: 2}, a.addr, b.addr, c.addr)
	for _, addr := range []string{a.addr, b.addr, c.addr, b.addr} {
		if _, err := p.Do(within(t, time.Second), addr, frame(1, "x"), true); err != nil {
			t.Fatal(err)
		}
	}
	if got := [4]int{p.openTotal(), p.Conns(a.addr), p.Conns(b.addr), p.Conns(c.addr)}; got != [4]int{2, 0, 1, 1} {
		t.Errorf("open in all and to a, b, c: %v, want 2, 0, 1, 1: the longest idle one made room", got)
	}
	if n := b.conns.Load(); n != 1 {
		t.Errorf("%d connections to b, want 1", n)
	}
}

// pipePool is a pool over in-memory connections, for fake time.
func pipePool(t *testing.T, o Options, serve func(c net.Conn, n int32)) (p *Pool, conns *atomic.Int32) {
	conns = new(atomic.Int32)
	o.Dial = func(context.Context, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		n := conns.Add(1)
		go serve(theirs, n)
		return ours, nil
	}
	return newPool(t, o, "b1:9092"), conns
}

func TestIdleConnectionsAreClosedBeforeTheBrokerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := pipePool(t, Options{}, echo)
		if _, err := p.Do(t.Context(), "b1:9092", frame(1, "x"), true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		p.Sweep()
		if n := p.Conns("b1:9092"); n != 1 {
			t.Errorf("after 4 min: %d connections, want 1", n)
		}
		time.Sleep(2 * time.Minute)
		p.Sweep()
		if n := p.Conns("b1:9092"); n != 0 {
			t.Errorf("after 6 min: %d connections, want 0", n)
		}
	})
}

// A client that goes away while its request is under way costs the broker no connection, as long as the answer comes soon.
func TestAClientThatGoesDoesNotCostTheConnection(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer time.Duration
		conns  int32
	}{{"prompt", 300 * time.Millisecond, 1}, {"hanging", time.Hour, 2}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, conns := pipePool(t, Options{MaxConns: 1}, func(nc net.Conn, n int32) {
					for {
						req, err := readFrame(nc)
						if err != nil {
							return
						}
						if n == 1 {
							time.Sleep(c.answer)
						}
						_, _ = nc.Write(answerTo(req))
					}
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				time.AfterFunc(100*time.Millisecond, cancel)
				began := time.Now()
				_, _ = p.Do(ctx, "b1:9092", frame(1, "gone"), true)
				if took := time.Since(began); took > 1200*time.Millisecond {
					t.Errorf("the connection was held for %v after the client had gone", took)
				}
				req := frame(2, "next")
				got, err := p.Do(within(t, 2*time.Second), "b1:9092", req, true)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(answerTo(req), got); diff != "" {
					t.Errorf("the next client's answer (-want +got):\n%s", diff)
				}
				if n := conns.Load(); n != c.conns {
					t.Errorf("%d connections, want %d", n, c.conns)
				}
				time.Sleep(2 * time.Hour) // the hanging broker gives up
			})
		})
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := pipePool(t, Options{MaxConns: 1}, func(c net.Conn, _ int32) { _, _ = io.Copy(io.Discard, c) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { _, _ = p.Do(ctx, "b1:9092", frame(1, "x"), false) }()
		synctest.Wait()
		began := time.Now()
		short, stop := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer stop()
		_, err := p.Do(short, "b1:9092", frame(2, "x"), false)
		var notSent *NotSentError
		if !errors.Is(err, ErrLate) || !errors.As(err, &notSent) || time.Since(began) != 400*time.Millisecond {
			t.Errorf("got %v after %v, want ErrLate, not sent, after 400 ms", err, time.Since(began))
		}
		time.Sleep(time.Second)
	})
}
