package scenario

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

// TestDroppedClientsComeBackWithTheirLibrarysBackOff: java's first pause is 50 ms +-20%, and doubles for each that fails.
func TestDroppedClientsComeBackWithTheirLibrarysBackOff(t *testing.T) {
	var metadata atomic.Int32
	p := &peer{}
	p.write = func(c *net.TCPConn, key int16, frame []byte) bool {
		if key == 3 {
			if n := metadata.Add(1); n == 2 || n == 3 { // the first is the preparation's
				_ = c.SetLinger(0)
				return false
			}
		}
		_, err := c.Write(frame)
		return err == nil
	}
	cfg := short(p.listen(t), "reconnect")
	cfg.Clients, cfg.Libraries, cfg.Duration, cfg.Every = 1, []Share{{"java", 1}}, 1500*time.Millisecond, 3*time.Second
	r := run(t, cfg)
	// 50 + 100 + 200 ms, each from 0.8 to 1.2 of it, and what a busy machine adds.
	recovery := time.Duration(r.Stages[record.Recovery].Max())
	if r.Answered != 1 || r.Failed[failure.Reset] != 2 || recovery < 280*time.Millisecond || recovery > 1400*time.Millisecond {
		t.Errorf("%d answered, failures %v, back after %s", r.Answered, r.Failed, recovery)
	}
}

func TestARebootstrappingFleetFindsStaleAddresses(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := nobody.Addr().(*net.TCPAddr).Port
	_ = nobody.Close()
	p := &peer{faults: faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Brokers[2].Port = int32(port) }}}
	cfg := short(p.listen(t), "rebootstrap")
	brief(&cfg)
	r := run(t, cfg)
	if r.Failed[failure.StaleAddress] == 0 || r.Answered > 0 || !strings.Contains(r.Details[failure.StaleAddress][0], "refused") {
		t.Errorf("%d answered, failures %v %v", r.Answered, r.Failed, r.Details)
	}
}

func TestAdvertisedBrokersBeyondTheLoopbackAreNotDialled(t *testing.T) {
	p := &peer{faults: faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Brokers[2].Host = "192.0.2.1" }}}
	cfg := short(p.listen(t), "storm")
	cfg.DialBrokers = true
	r := run(t, cfg)
	if r.Failed[failure.LocalOther] == 0 || r.TargetFailures() > 0 || !strings.Contains(r.Details[failure.LocalOther][0], "--yes-really") {
		t.Errorf("failures %v %v", r.Failed, r.Details)
	}
}

// TestATargetThatBearsWhatABrokerCutsIsFound: one that keeps a connection with nonsense on it, and one that answers it.
func TestATargetThatBearsWhatABrokerCutsIsFound(t *testing.T) {
	for want, serve := range map[failure.Class]func(net.Conn){
		failure.Timeout: func(c net.Conn) {
			for b := make([]byte, 64); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		},
		failure.Unasked: func(c net.Conn) {
			if _, err := c.Read(make([]byte, 64)); err == nil {
				_, _ = c.Write([]byte{0, 0, 0, 8, 0, 0, 0, 1, 0, 35, 0, 0})
				_, _ = c.Read(make([]byte, 64))
			}
		},
	} {
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
				go func() { serve(c); _ = c.Close() }()
			}
		}()
		cfg := short(ln.Addr().String(), "hostile")
		cfg.Timeout, cfg.Clients = 100*time.Millisecond, len(assaults)
		r := run(t, cfg)
		_ = ln.Close()
		<-done
		if r.Failed[want] == 0 || len(r.Details[want]) == 0 {
			t.Errorf("want %s: failures %v %v", want, r.Failed, r.Details)
		}
	}
}

// TestASlowReaderIsLateOnlyWhenNothingComes: an answer may take longer than the operation's time, as long as bytes come.
func TestASlowReaderIsLateOnlyWhenNothingComes(t *testing.T) {
	target := (&peer{}).listen(t)
	cfg := short(target, "slowreader")
	cfg.Timeout, cfg.ReadRate = 100*time.Millisecond, 500 // an answer of about 200 bytes takes 400 ms
	r := run(t, cfg)
	if took := time.Duration(r.Stages[record.Metadata].Max()); r.Answered == 0 || r.TargetFailures() > 0 || took < 2*cfg.Timeout {
		t.Errorf("%d answered, failures %v %v, answers took %s", r.Answered, r.Failed, r.Details, took)
	}
	silent := &peer{}
	silent.write = func(c *net.TCPConn, key int16, frame []byte) bool {
		if key == 3 {
			frame = frame[:20]
		}
		_, err := c.Write(frame)
		return err == nil
	}
	cfg.Target = silent.listen(t)
	if r := run(t, cfg); r.Failed[failure.Timeout] == 0 || r.Answered > 0 {
		t.Errorf("half an answer: %d answered, failures %v", r.Answered, r.Failed)
	}
}

func TestSharesAreDealtEvenly(t *testing.T) {
	d := newDeal([]Share{{"a", 3}, {"b", 1}})
	got := ""
	for range 8 {
		got += d.next()
	}
	if strings.Count(got, "a") != 6 || strings.Contains(got, "aaaaa") || strings.Contains(got, "bb") {
		t.Errorf("dealt %s", got)
	}
}

func TestARingGivesBackInOrder(t *testing.T) {
	var r ring[int]
	next, want := 0, 0
	for round := range 50 {
		for range round % 23 {
			r.push(next)
			next++
		}
		for r.len() > round%7 {
			if got := r.first(); got != want || r.pop() != want {
				t.Fatalf("got %d, want %d", got, want)
			}
			want++
		}
	}
}
