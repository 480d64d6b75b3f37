package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echo sends back what it gets, and closes when it is closed on.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); served.Wait() })
	return l.Addr().String()
}

func startProxyT(t *testing.T) *FaultProxy {
	t.Helper()
	target := echo(t)
	p, err := StartFaultProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *FaultProxy) setT(t *testing.T, f Faults) {
	t.Helper()
	if err := p.Set(f); err != nil {
		t.Fatal(err)
	}
}

func dialT(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

// ask sends text and returns what comes back until there is as much, or an end.
func ask(c net.Conn, text string) (string, error) {
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	b := make([]byte, len(text))
	n, err := io.ReadFull(c, b)
	return string(b[:n]), err
}

// quiet says that nothing comes within a moment: no byte and no end.
func quiet(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := c.Read(make([]byte, 1))
	if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v; want nothing", n, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
}

func TestAConnectionIsCutAtAnyByteOfEitherDirection(t *testing.T) {
	p := startProxyT(t)
	const text = "0123456789"
	for k := range int64(len(text)) {
		for _, up := range []bool{true, false} {
			path, f := Path{Cut: true, CutAt: k}, Faults{}
			if up {
				f.Up = path
			} else {
				f.Down = path
			}
			p.setT(t, f)
			got, err := ask(dialT(t, p.Addr()), text)
			if up && len(got) > int(k) || !up && (got != text[:k] || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET)) {
				t.Errorf("cut at %d, up %v: %q, %v", k, up, got, err)
			}
		}
	}
	p.setT(t, Faults{Down: Path{Cut: true, CutReset: true}})
	if _, err := ask(dialT(t, p.Addr()), text); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("cut with a reset: %v", err)
	}
	p.setT(t, Faults{Down: Path{Cut: true, CutAt: 10}})
	if got, err := ask(dialT(t, p.Addr()), text); got != text || err != nil {
		t.Errorf("cut behind the end: %q, %v", got, err)
	}
}

func TestFaultsOfAnOpenConnectionSwitchWhileItLives(t *testing.T) {
	p := startProxyT(t)
	c := dialT(t, p.Addr())
	if got, err := ask(c, "as it comes"); got != "as it comes" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	p.setT(t, Faults{Up: Path{Delay: 30 * time.Millisecond}, Down: Path{Delay: 30 * time.Millisecond}})
	began := time.Now()
	if got, err := ask(c, "late"); got != "late" || err != nil || time.Since(began) < 60*time.Millisecond {
		t.Errorf("%q, %v after %v", got, err, time.Since(began))
	}
	p.setT(t, Faults{Down: Path{Rate: 1000}})
	began = time.Now()
	if got, err := ask(c, string(make([]byte, 200))); len(got) != 200 || err != nil || time.Since(began) < 150*time.Millisecond {
		t.Errorf("%d bytes, %v after %v at 1000 a second", len(got), err, time.Since(began))
	}
	p.setT(t, Faults{Down: Path{Delay: time.Hour}})
	if _, err := io.WriteString(c, "held"); err != nil {
		t.Fatal(err)
	}
	quiet(t, c)
	p.setT(t, Faults{})
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "held" {
		t.Errorf("what was held: %q, %v", b, err)
	}
	p.setT(t, Faults{Up: Path{Drop: true}})
	if _, err := io.WriteString(c, "gone"); err != nil {
		t.Fatal(err)
	}
	quiet(t, c)
	p.setT(t, Faults{})
	if got, err := ask(c, "back"); got != "back" || err != nil {
		t.Errorf("after a black hole: %q, %v", got, err)
	}
	eventually(t, func() error { // bytes are counted when they have been written
		if up, down := p.Bytes(); up != 11+4+200+4+4 || down != up || p.Connections() != 1 {
			return fmt.Errorf("%d bytes up, %d down, %d connections", up, down, p.Connections())
		}
		return nil
	})
}

func TestRefusedAndResetConnectionsAreThat(t *testing.T) {
	p := startProxyT(t)
	open := dialT(t, p.Addr())
	if _, err := ask(open, "x"); err != nil {
		t.Fatal(err)
	}
	p.setT(t, Faults{Refuse: true})
	if c, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refusing: %v", err)
		if err == nil {
			_ = c.Close()
		}
	}
	if _, err := ask(open, "y"); err != nil {
		t.Errorf("the open connection: %v", err)
	}
	p.setT(t, Faults{Reset: true})
	c, err := net.Dial("tcp", p.Addr())
	if err == nil { // the reset comes during the connect, or after it
		_, err = ask(c, "z")
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("resetting: %v", err)
	}
	p.ResetAll()
	if _, err := open.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the open connection, reset: %v", err)
	}
	p.setT(t, Faults{})
	if _, err := ask(dialT(t, p.Addr()), "again"); err != nil {
		t.Error(err)
	}
}

func TestAHalfOpenConnectionLooksAliveToTheClient(t *testing.T) {
	p := startProxyT(t)
	c, told := dialT(t, p.Addr()), dialT(t, p.Addr())
	for _, c := range []*net.TCPConn{c, told} {
		if _, err := ask(c, "x"); err != nil {
			t.Fatal(err)
		}
	}
	p.setT(t, Faults{HalfOpen: true})
	p.CloseTargets()
	quiet(t, c)
	if _, err := io.Copy(c, bytes.NewReader(make([]byte, 1<<16))); err != nil {
		t.Errorf("a dead connection must take bytes: %v", err)
	}
	quiet(t, c)
	p.setT(t, Faults{})
	if _, err := told.Read(make([]byte, 1)); err == nil {
		t.Error("without the fault the end is not passed on")
	}
}

func TestAProxyEndsWithWhateverIsUnderWay(t *testing.T) {
	p, err := StartFaultProxy(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Set(Faults{Up: Path{Delay: time.Hour}, HalfOpen: true}); err != nil {
		t.Fatal(err)
	}
	c := dialT(t, p.Addr())
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if p.Connections() == 0 {
			return errors.New("not accepted yet")
		}
		return nil
	})
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if err := p.Set(Faults{}); err == nil {
		t.Error("a closed proxy takes faults")
	}
	if _, err := StartFaultProxy("nowhere"); err == nil {
		t.Error("a target without a port")
	}
}
