package probe

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/healthcheck"
)

// fixture is one row of the conformance suite.
type fixture struct {
	// pass changes stub and config so that the check passes; nil: they do as they are.
	pass func(*stub, *Config)
	// fails changes them so that this check ends the probe with the reason.
	fails map[healthcheck.Reason]func(*stub, *Config)
	// slow makes the check hang until its context ends; nil for a check that only looks at what others found.
	slow func(*stub, *Config)
	// key is the request that hostile bytes answer; 0 for a check that reads nothing.
	key int16
}

// fixtures has a row for every check of the registry.
var fixtures = map[string]fixture{
	"connect": {
		fails: map[healthcheck.Reason]func(*stub, *Config){
			ReasonRefused: func(s *stub, _ *Config) { _ = s.ln.Close() },
			ReasonConnect: func(_ *stub, c *Config) {
				c.Dial = func(context.Context, string, string) (net.Conn, error) {
					return nil, &net.DNSError{Err: "no such host", Name: "nowhere", IsNotFound: true}
				}
			},
		},
		slow: func(_ *stub, c *Config) {
			c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		},
	},
	"api_versions": {
		fails: map[healthcheck.Reason]func(*stub, *Config){
			ReasonClosed:    func(s *stub, _ *Config) { s.raw[18] = []byte{} },
			ReasonVersion:   func(s *stub, _ *Config) { s.apis[18] = -1 },
			ReasonBadAnswer: func(s *stub, _ *Config) { s.raw[18] = reply(make([]byte, 4), []byte{0, 1}) },
		},
		slow: func(s *stub, _ *Config) { s.raw[18] = nil },
		key:  18,
	},
	"listener": {
		fails: map[healthcheck.Reason]func(*stub, *Config){
			// What a KRaft controller lists, in short.
			ReasonController: func(s *stub, _ *Config) { s.apis = map[int16]int16{1: 18, 18: 4, 52: 2, 60: 2} },
		},
	},
	"metadata": {
		fails: map[healthcheck.Reason]func(*stub, *Config){
			ReasonNoBrokers: func(s *stub, _ *Config) { s.brokers, s.controller = nil, -1 },
			ReasonVersion:   func(s *stub, _ *Config) { s.apis[3] = 0 },
			ReasonClosed:    func(s *stub, _ *Config) { s.raw[3] = []byte{} },
		},
		slow: func(s *stub, _ *Config) { s.raw[3] = nil },
		key:  3,
	},
	"cluster_id": {
		pass:  func(_ *stub, c *Config) { c.ClusterID = func() string { return "A" } },
		fails: map[healthcheck.Reason]func(*stub, *Config){ReasonWrongCluster: func(_ *stub, c *Config) { c.ClusterID = func() string { return "B" } }},
	},
	"unfenced": {
		fails: map[healthcheck.Reason]func(*stub, *Config){
			ReasonFenced: func(s *stub, _ *Config) { s.fence() },
			ReasonClosed: func(s *stub, _ *Config) { s.fence(); s.raw[60] = []byte{} },
		},
		slow: func(s *stub, _ *Config) { s.fence(); s.raw[60] = nil },
	},
	"self_listed": {
		fails: map[healthcheck.Reason]func(*stub, *Config){ReasonNotListed: func(s *stub, _ *Config) { s.brokers = s.brokers[1:] }},
	},
	"node_id": {
		pass:  func(_ *stub, c *Config) { c.NodeID = 1 },
		fails: map[healthcheck.Reason]func(*stub, *Config){ReasonWrongNode: func(_ *stub, c *Config) { c.NodeID = 2 }},
	},
}

// fence hides the stub's own broker as a cluster does that has fenced it.
func (s *stub) fence() {
	b := s.brokers[0]
	s.brokers = s.brokers[1:]
	s.fenced = []kmsg.DescribeClusterResponseBroker{{NodeID: b.NodeID, Host: b.Host, Port: b.Port, IsFenced: true}}
}

// set up makes a prober of a fresh stub.
func setUp(t *testing.T, change func(*stub, *Config)) (*stub, *Prober) {
	t.Helper()
	s := newStub(t)
	return s, s.prober(t, func(c *Config) {
		if change != nil {
			s.set(func(s *stub) { change(s, c) })
		}
	})
}

func TestEveryCheckConforms(t *testing.T) {
	for _, name := range Names() {
		f, ok := fixtures[name]
		if !ok {
			t.Errorf("check %q has no row in the conformance suite", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Run("pass", func(t *testing.T) {
				_, p := setUp(t, f.pass)
				for range 2 { // on a new connection, and on the kept one
					r := probe(t, p)
					i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Name == name })
					if !r.Verdict.Passed() || i < 0 || r.Steps[i].Detail == "" {
						t.Fatalf("verdict %+v, steps %+v", r.Verdict, r.Steps)
					}
				}
			})
			for reason, change := range f.fails {
				t.Run("fail "+string(reason), func(t *testing.T) {
					_, p := setUp(t, change)
					for range 2 {
						r := probe(t, p)
						if last := r.Steps[len(r.Steps)-1]; r.Verdict.Reason != reason || last.Name != name || r.Verdict.Detail == "" {
							t.Fatalf("got %q by %q (%s), want %q by %q", r.Verdict.Reason, last.Name, r.Verdict.Detail, reason, name)
						}
					}
				})
			}
			if f.slow != nil {
				t.Run("slow", func(t *testing.T) { slow(t, f.slow) })
				t.Run("cancelled", func(t *testing.T) { cancelled(t, f.slow) })
			}
			if f.key != 0 {
				t.Run("hostile", func(t *testing.T) { hostile(t, f.key) })
			}
		})
	}
}

const promptly = 50 * time.Millisecond

// soon runs try until it says yes, three times at most: the machine may be busy with something else.
func soon(t *testing.T, try func() (ok bool, said string)) {
	t.Helper()
	var said string
	for range 3 {
		var ok bool
		if ok, said = try(); ok {
			return
		}
	}
	t.Error(said)
}

func slow(t *testing.T, change func(*stub, *Config)) {
	const timeout = 100 * time.Millisecond
	soon(t, func() (bool, string) {
		_, p := setUp(t, change)
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		begun := time.Now()
		r := p.Run(ctx)
		took := time.Since(begun)
		return r.Verdict.Reason == ReasonTimeout && took >= timeout && took <= timeout+promptly,
			fmt.Sprintf("%q after %v, want a timeout at %v", r.Verdict.Reason, took, timeout)
	})
}

func cancelled(t *testing.T, change func(*stub, *Config)) {
	soon(t, func() (bool, string) {
		_, p := setUp(t, change)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan time.Time, 1)
		time.AfterFunc(30*time.Millisecond, func() {
			ended <- time.Now()
			cancel()
		})
		r := p.Run(ctx)
		late := time.Since(<-ended)
		return !r.Verdict.Passed() && late <= promptly, fmt.Sprintf("%+v, %v after the context ended", r.Verdict, late)
	})
}

// hostile has the broker answer a request with bytes that no broker sends.
func hostile(t *testing.T, key int16) {
	huge := make([]byte, 2<<20)
	binary.BigEndian.PutUint32(huge, uint32(len(huge)-4))
	rows := map[string][]byte{
		"size 2^31-1":            {0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0},
		"size -1":                {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0},
		"size 0":                 {0, 0, 0, 0},
		"size 3":                 {0, 0, 0, 3, 1, 2, 3},
		"other correlation id":   {0, 0, 0, 10, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0},
		"TLS alert":              {0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46},
		"HTTP":                   []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"nothing after the id":   reply(make([]byte, 4), nil),
		"2^31-1 elements":        reply(make([]byte, 4), []byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0}),
		"2^28 tags":              reply(make([]byte, 4), []byte{0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, 0, 0, 0, 0}),
		"endless varint":         reply(make([]byte, 4), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}),
		"a million empty things": huge,
	}
	for name, raw := range rows {
		t.Run(name, func(t *testing.T) {
			s, p := setUp(t, func(s *stub, _ *Config) { s.raw[key] = raw })
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := probe(t, p)
			runtime.ReadMemStats(&after)
			if r.Verdict.Reason != ReasonBadAnswer {
				t.Errorf("got %q (%s), want bad_answer", r.Verdict.Reason, r.Verdict.Detail)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
				t.Errorf("allocated %d bytes", got)
			}
			// It is asked anew, on a new connection, and found well.
			s.set(func(s *stub) { delete(s.raw, key) })
			if r := probe(t, p); !r.Verdict.Passed() || !r.Reconnected {
				t.Errorf("after the hostile answer: %+v, reconnected %v", r.Verdict, r.Reconnected)
			}
		})
	}
	t.Run("cut at every byte", func(t *testing.T) {
		s, p := setUp(t, nil)
		frame := binary.BigEndian.AppendUint16(nil, uint16(key))
		whole := s.answer(append(binary.BigEndian.AppendUint16(frame, 4), 0, 0, 0, 0))
		for cut := 1; cut < len(whole); cut += 7 {
			s.set(func(s *stub) { s.raw[key] = whole[:cut] })
			ctx, cancel := context.WithTimeout(context.Background(), 15*time.Millisecond)
			if r := p.Run(ctx); r.Verdict.Reason != ReasonTimeout {
				t.Errorf("cut at %d of %d: %q, want timeout", cut, len(whole), r.Verdict.Reason)
			}
			cancel()
		}
	})
}
