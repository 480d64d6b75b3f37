package scenario

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
	"github.com/kvip/kvip/loadtest/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func short(target, name string) Config {
	cfg := Defaults()
	cfg.Target, cfg.Scenario, cfg.Clients = target, name, 4
	cfg.Warmup, cfg.Duration, cfg.Timeout = 0, 150*time.Millisecond, 2*time.Second
	cfg.Lookup = kafka.Lookup{Topics: []string{"orders"}}
	return cfg
}

func run(t *testing.T, cfg Config) *record.Result {
	t.Helper()
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// brief shortens every time of a scenario's own.
func brief(cfg *Config) {
	cfg.Pace, cfg.Every, cfg.Spread, cfg.ReadRate = 100, 50*time.Millisecond, 20*time.Millisecond, 1<<20
	if Scenarios[cfg.Scenario].Paced {
		cfg.Duration = 400 * time.Millisecond // beyond every library's first back-off
	}
}

func TestASoundTargetHasNoFailureAtAnyVersion(t *testing.T) {
	target := (&peer{}).listen(t)
	for _, name := range Names() {
		for version := int16(0); version <= kafka.MaxMetadata; version++ {
			cfg := short(target, name)
			cfg.MetadataVersion, cfg.APIVersionsVersion = version, version%(kafka.MaxAPIVersions+1)
			cfg.Duration = 60 * time.Millisecond
			brief(&cfg)
			if name != "kept" && name != "storm" {
				if version != 12 {
					continue
				}
				cfg.Clients = 40 // every library, every assault
			}
			for _, open := range []bool{false, true} {
				cfg.Rate = nil
				if open {
					if Scenarios[name].Paced {
						continue
					}
					cfg.Rate = profile(t, 1000, cfg.Duration)
				}
				r := run(t, cfg)
				for r.Intended == 0 && cfg.Duration < 10*time.Second { // a busy machine may not have connected by then
					cfg.Duration *= 4
					r = run(t, cfg)
				}
				if r.Answered == 0 || r.TargetFailures()+r.LocalFailures() > 0 || r.Answered != r.Started || r.Started != r.Intended {
					t.Errorf("%s v%d open %t: %d of %d answered, failures %v %v", name, version, open, r.Answered, r.Intended, r.Failed, r.Details)
				}
			}
		}
	}
}

func profile(t *testing.T, rate float64, length time.Duration) *schedule.Profile {
	t.Helper()
	p, err := schedule.New(schedule.Segment{Length: length, From: rate, To: rate})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEveryPlantedFaultIsFoundAndNamed(t *testing.T) {
	onMetadata := func(f func(c *net.TCPConn, frame []byte) bool) func(*net.TCPConn, int16, []byte) bool {
		return func(c *net.TCPConn, key int16, frame []byte) bool {
			if key == 3 {
				return f(c, frame)
			}
			_, err := c.Write(frame)
			return err == nil
		}
	}
	send := func(c *net.TCPConn, frame []byte) bool { _, err := c.Write(frame); return err == nil }
	for name, c := range map[string]struct {
		faults
		want failure.Class
		only string // the scenario that can meet it; "": kept and storm
	}{
		"reset instead of an answer":  {faults{write: onMetadata(func(c *net.TCPConn, _ []byte) bool { _ = c.SetLinger(0); return false })}, failure.Reset, ""},
		"closed instead of an answer": {faults{write: onMetadata(func(*net.TCPConn, []byte) bool { return false })}, failure.Closed, ""},
		"silence":                     {faults{write: onMetadata(func(*net.TCPConn, []byte) bool { return true })}, failure.Timeout, ""},
		"closed inside the answer":    {faults{write: onMetadata(func(c *net.TCPConn, f []byte) bool { send(c, f[:len(f)-3]); return false })}, failure.Short, ""},
		"body shorter than its fields": {faults{write: onMetadata(func(c *net.TCPConn, f []byte) bool {
			f = f[:len(f)-3]
			binary.BigEndian.PutUint32(f, uint32(len(f)-4))
			return send(c, f)
		})}, failure.Short, ""},
		"body longer than its fields": {faults{write: onMetadata(func(c *net.TCPConn, f []byte) bool {
			f = append(f, 0)
			binary.BigEndian.PutUint32(f, uint32(len(f)-4))
			return send(c, f)
		})}, failure.Malformed, ""},
		"negative length":           {faults{write: onMetadata(func(c *net.TCPConn, f []byte) bool { f[0] = 0x80; return send(c, f) })}, failure.Malformed, ""},
		"another correlation id":    {faults{write: onMetadata(func(c *net.TCPConn, f []byte) bool { f[7]++; return send(c, f) })}, failure.WrongID, ""},
		"error of the greeting":     {faults{greet: func(a *kmsg.ApiVersionsResponse) { a.ErrorCode = 42; a.ApiKeys = nil }}, failure.ErrorCode, "storm"},
		"error of the whole answer": {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.ErrorCode = 129 }}, failure.ErrorCode, ""},
		"error of the topic":        {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Topics[0].ErrorCode = 5 }}, failure.ErrorCode, ""},
		"no broker":                 {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Brokers = nil }}, failure.EmptyList, ""},
		"broker without an address": {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Brokers[1].Host = "" }}, failure.Malformed, ""},
		"broker listed twice":       {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Brokers[1].NodeID = 1 }}, failure.Malformed, ""},
		"topic left out":            {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.Topics = nil }}, failure.MissingTopic, ""},
		"not the cluster asked for": {faults{answer: func(_ int, m *kmsg.MetadataResponse) { m.ClusterID = kmsg.StringPtr("cluster-b") }}, failure.WrongCluster, ""},
		"epoch goes back": {faults{answer: func(n int, m *kmsg.MetadataResponse) {
			if n%20 == 0 {
				m.Topics[0].Partitions[1].LeaderEpoch = 6
			}
		}}, failure.EpochBack, ""},
	} {
		for _, scenario := range []string{"kept", "storm", "steady"} {
			if c.only == "" && scenario == "steady" {
				continue
			}
			if c.only != "" && c.only != scenario {
				continue
			}
			t.Run(name+" "+scenario, func(t *testing.T) {
				planted := &peer{faults: c.faults}
				cfg := short(planted.listen(t), scenario)
				cfg.MetadataVersion = 13 // has every field
				if c.want == failure.Timeout {
					cfg.Timeout = 30 * time.Millisecond
				}
				if c.want == failure.WrongCluster {
					cfg.ClusterID = "cluster-a"
				}
				r := run(t, cfg)
				for class, n := range r.Failed {
					if (n > 0) != (failure.Class(class) == c.want) {
						t.Errorf("%s: %d (want only %s) %v", failure.Class(class), n, c.want, r.Details)
					}
				}
			})
		}
	}
}

func TestAnotherClusterOnOneConnectionIsWrongAndOnTheNextIsNot(t *testing.T) {
	changing := &peer{faults: faults{answer: func(n int, m *kmsg.MetadataResponse) {
		if n%2 == 0 {
			m.ClusterID = kmsg.StringPtr("cluster-b")
		}
	}}}
	target := changing.listen(t)
	if r := run(t, short(target, "kept")); r.Failed[failure.WrongCluster] == 0 {
		t.Errorf("kept: failures %v", r.Failed)
	}
	if r := run(t, short(target, "storm")); r.TargetFailures() > 0 || r.Answered == 0 {
		t.Errorf("storm: %d answered, failures %v", r.Answered, r.Failed)
	}
}

func TestARefusedStormIsCountedAndDoesNotSpin(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	r := run(t, short(ln.Addr().String(), "storm"))
	if n := r.Failed[failure.Refused]; n == 0 || n > r.Started || n+4 < r.Started || n > 4*100 {
		t.Errorf("%d refused of %d started in %s by 4 clients that pause 10 ms", n, r.Started, r.Elapsed)
	}
}

func TestAKeptConnectionThatTheTargetClosesWhenQuietIsNoFailure(t *testing.T) {
	var connections atomic.Int32
	target := &peer{}
	target.write = func(c *net.TCPConn, key int16, frame []byte) bool {
		_, _ = c.Write(frame)
		if key == 18 {
			connections.Add(1)
		}
		return key == 18 || connections.Load() > 1 // closes the first connection after its first lookup
	}
	cfg := short(target.listen(t), "kept")
	cfg.Clients = 1
	r := run(t, cfg)
	// The close may meet the next request under way: then it is that operation's failure, and never more than that.
	if r.Answered == 0 || r.TargetFailures() > 1 || connections.Load() != 2 {
		t.Errorf("%d answered, failures %v, %d connections", r.Answered, r.Failed, connections.Load())
	}
}

// TestADeadTargetIsToBlameInAnOpenLoop: it resets all connections and is gone; operations that nobody can be asked must be
// its failures, not a want of clients.
func TestADeadTargetIsToBlameInAnOpenLoop(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sound := &peer{open: map[net.Conn]bool{}}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			sound.track(c, true)
			served.Go(func() { sound.serve(c.(*net.TCPConn)) })
		}
	})
	die := func() {
		_ = ln.Close()
		sound.mu.Lock()
		defer sound.mu.Unlock()
		for c := range sound.open {
			_ = c.Close()
		}
	}
	cfg := short(ln.Addr().String(), "kept")
	cfg.Rate, cfg.Clients = profile(t, 300, 400*time.Millisecond), 10
	cfg.Observe = func(begin bool) {
		if begin {
			time.AfterFunc(100*time.Millisecond, die)
		}
	}
	r := run(t, cfg)
	served.Wait()
	if r.Answered == 0 || r.Failed[failure.Refused] < 30 || r.LocalFailures() > 0 || r.Started != r.Intended {
		t.Errorf("%d of %d answered, failures %v", r.Answered, r.Intended, r.Failed)
	}
}

func TestATargetThatNeverGetsReadyEndsTheRunWithItsReason(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("the test's time is over"))
	defer cancel()
	if _, err := Run(ctx, short(ln.Addr().String(), "kept")); err == nil || !strings.Contains(err.Error(), "time is over") {
		t.Errorf("got %v, want the context's cause", err)
	}
}

func TestBadSettingsAreNamedWithTheirFix(t *testing.T) {
	cfg := Defaults()
	cfg.Scenario, cfg.Clients, cfg.MetadataVersion = "flood", 1<<20, 14
	err := cfg.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"no target", `unknown scenario "flood": one of hostile, kept, mixed`, "ulimit -n", "Metadata v14: 0 to 13"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
}
