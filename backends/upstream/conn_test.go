package upstream

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOnlyTheCorrelationIDIsRewritten(t *testing.T) {
	seen := make(chan []byte, 2)
	b := listen(t, func(c net.Conn, _ int32) {
		for {
			req, err := readFrame(c)
			if err != nil {
				return
			}
			seen <- req
			_, _ = c.Write(answerTo(req))
		}
	})
	p := newPool(t, Options{}, b.addr)
	for i, correlation := range []int32{-7, 1 << 30} {
		req := frame(correlation, "body")
		got, err := p.Do(within(t, time.Second), b.addr, req, false)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(answerTo(req), got); diff != "" {
			t.Errorf("the client's answer (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(frame(correlation, "body"), req); diff != "" {
			t.Errorf("the client's frame was changed (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(frame(int32(i+1), "body"), <-seen); diff != "" {
			t.Errorf("what the broker got (-want +got):\n%s", diff)
		}
	}
	if n := b.conns.Load(); n != 1 {
		t.Errorf("%d connections for two requests one after the other, want 1", n)
	}
}

func TestBytesThatAreNoAnswer(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"another correlation id": {0, 0, 0, 4, 0, 0, 0, 9},
		"a size of 2 GB":         {0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1},
		"a negative size":        {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1},
		"a size below 4":         {0, 0, 0, 3, 0, 0, 0, 1},
		"more than was asked":    {0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := listen(t, func(c net.Conn, _ int32) {
				if _, err := readFrame(c); err == nil {
					_, _ = c.Write(bytes)
					_, _ = io.Copy(io.Discard, c)
				}
			})
			p := newPool(t, Options{}, b.addr)
			_, err := p.Do(within(t, time.Second), b.addr, frame(1, "x"), true)
			if !errors.Is(err, ErrAnswer) {
				t.Errorf("got %v, want ErrAnswer", err)
			}
			if n := p.Conns(b.addr); n != 0 {
				t.Errorf("%d connections are kept, want 0", n)
			}
		})
	}
}

// Memory for an answer is taken as it arrives, not as its size promises.
func TestAPromisedSizeTakesNoMemory(t *testing.T) {
	b := listen(t, func(c net.Conn, _ int32) {
		if _, err := readFrame(c); err == nil {
			_, _ = c.Write([]byte{0x03, 0xff, 0xff, 0xff, 0, 0, 0, 1}) // 64 MiB
		}
	})
	p := newPool(t, Options{}, b.addr)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := p.Do(within(t, time.Second), b.addr, frame(1, "x"), false)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want an unexpected EOF", err)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d bytes were taken for an answer of 8 bytes", grown)
	}
}

func TestALargeAnswerArrivesWhole(t *testing.T) {
	body := make([]byte, 3<<20)
	for i := range body {
		body[i] = byte(i * 7)
	}
	b := listen(t, echo)
	p := newPool(t, Options{MaxAnswer: 4 << 20}, b.addr)
	req := frame(1, string(body))
	got, err := p.Do(within(t, 10*time.Second), b.addr, req, false)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(answerTo(req)) {
		t.Error("the answer differs from what the broker sent")
	}
}

// A broker closes what has been idle for long. Noticing that is no failed request, whatever the request does.
func TestAConnectionThatTheBrokerClosedWhileIdle(t *testing.T) {
	closed := make(chan struct{}, 8)
	b := listen(t, func(c net.Conn, _ int32) {
		if req, err := readFrame(c); err == nil {
			_, _ = c.Write(answerTo(req))
		}
		_ = c.Close()
		closed <- struct{}{}
	})
	p := newPool(t, Options{}, b.addr)
	for i := range int32(3) {
		if _, err := p.Do(within(t, time.Second), b.addr, frame(i, "write"), false); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		<-closed
	}
}

// When it closes in the very moment of the request nobody knows whether that was read: only what changes nothing is sent
// again, once.
func TestAConnectionThatDiesUnderTheRequest(t *testing.T) {
	for _, c := range []struct {
		name   string
		resend bool
		want   int32 // requests that the broker read
	}{{"read", true, 3}, {"write", false, 2}} {
		t.Run(c.name, func(t *testing.T) {
			var requests atomic.Int32
			b := listen(t, func(c net.Conn, n int32) {
				for i := 0; ; i++ {
					req, err := readFrame(c)
					if err != nil {
						return
					}
					requests.Add(1)
					if n == 1 && i == 1 {
						return
					}
					_, _ = c.Write(answerTo(req))
				}
			})
			p := newPool(t, Options{}, b.addr)
			if _, err := p.Do(within(t, time.Second), b.addr, frame(1, "x"), c.resend); err != nil {
				t.Fatal(err)
			}
			_, err := p.Do(within(t, time.Second), b.addr, frame(2, "x"), c.resend)
			var notSent *NotSentError
			switch {
			case c.resend && err != nil:
				t.Errorf("a read failed: %v", err)
			case !c.resend && err == nil:
				t.Error("a write was sent twice")
			case errors.As(err, &notSent):
				t.Errorf("%v says that the request was not sent", err)
			}
			if n := requests.Load(); n != c.want {
				t.Errorf("the broker got %d requests, want %d", n, c.want)
			}
		})
	}
}
