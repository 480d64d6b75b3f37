package backends

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

// spoiled is a connection to a broker whose answers are changed, frame by frame, and may come a byte at a time.
type spoiled struct {
	net.Conn
	change func(frame []byte) []byte
	every  time.Duration // between two bytes
	rest   []byte
	until  atomic.Pointer[time.Time]
}

func (s *spoiled) SetDeadline(t time.Time) error { s.until.Store(&t); return s.Conn.SetDeadline(t) }
func (s *spoiled) SetReadDeadline(t time.Time) error {
	s.until.Store(&t)
	return s.Conn.SetReadDeadline(t)
}

func (s *spoiled) Read(b []byte) (int, error) {
	if len(s.rest) == 0 {
		frame := make([]byte, 4)
		if _, err := io.ReadFull(s.Conn, frame); err != nil {
			return 0, err
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
		if _, err := io.ReadFull(s.Conn, frame[4:]); err != nil {
			return 0, err
		}
		s.rest = frame
		if s.change != nil {
			s.rest = s.change(frame)
		}
	}
	if s.every > 0 {
		time.Sleep(s.every)
		if until := s.until.Load(); until != nil && !until.IsZero() && time.Now().After(*until) {
			return 0, os.ErrDeadlineExceeded
		}
		b = b[:min(1, len(b))]
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// evil is one way in which a broker may be out to harm the pool that asks it.
type evil struct {
	// spoil changes the bytes of its answers, says what it answers to Metadata.
	spoil func(net.Conn) net.Conn
	says  func(r *kmsg.MetadataResponse, all bool)
	// state is what becomes of it, rejected the reason for which its snapshots are refused, "" where none gets that far.
	state    string
	rejected snapshot.Reason
	// looks is how often the pool is looked at, each 100 ms; 50 when 0.
	looks int
}

// Row 29 of the hostile peers: whatever one broker of three says or sends, lookups go on with what the others say, nothing
// is connected to that no registry lists, and memory stays bounded.
var evils = map[string]evil{
	"an answer of 2 GB": {
		spoil: func(c net.Conn) net.Conn {
			return &spoiled{Conn: c, change: func(f []byte) []byte { binary.BigEndian.PutUint32(f, 1<<31-1); return f }}
		},
		state: "down bad_answer",
	},
	"a wrong correlation id": {
		spoil: func(c net.Conn) net.Conn {
			return &spoiled{Conn: c, change: func(f []byte) []byte { f[4] ^= 0x40; return f }}
		},
		state: "down bad_answer",
	},
	"garbage": {
		spoil: func(c net.Conn) net.Conn {
			return &spoiled{Conn: c, change: func(f []byte) []byte {
				for i := range f[8:] {
					f[8+i] = 0xff
				}
				return f
			}}
		},
		state: "down bad_answer",
	},
	"drip-fed": {
		spoil: func(c net.Conn) net.Conn { return &spoiled{Conn: c, every: 100 * time.Millisecond} },
		state: "down timeout",
	},
	"another cluster's id": {
		says:  func(r *kmsg.MetadataResponse, _ bool) { r.ClusterID = kmsg.StringPtr("B") },
		state: "quarantined wrong_cluster",
	},
	"itself at no host":                        {says: itselfAt("", 9093), state: "down not_listed"},
	"itself at port 0":                         {says: itselfAt("localhost", 0), state: "down not_listed"},
	"itself at the metadata service of clouds": {says: itselfAt("169.254.169.254", 80), state: "down not_listed"},
	"a further broker at no host":              {says: furtherAt("", 9093), state: "serving", rejected: snapshot.BadAddress},
	"a further broker at port 0":               {says: furtherAt("localhost", 0), state: "serving", rejected: snapshot.BadAddress},
	"a further broker at the metadata service of clouds": {
		says: furtherAt("169.254.169.254", 80), state: "serving", rejected: snapshot.BadAddress,
	},
	"a million empty topics": {
		says: func(r *kmsg.MetadataResponse, all bool) {
			if !all {
				return
			}
			r.Topics = million()
		},
		state:    "serving",
		rejected: snapshot.TopicGone,
		looks:    15, // each answer takes a while
	},
}

func itselfAt(host string, port int32) func(*kmsg.MetadataResponse, bool) {
	return func(r *kmsg.MetadataResponse, _ bool) { r.Brokers[1].Host, r.Brokers[1].Port = host, port }
}

func furtherAt(host string, port int32) func(*kmsg.MetadataResponse, bool) {
	return func(r *kmsg.MetadataResponse, _ bool) {
		r.Brokers = append(r.Brokers, kmsg.MetadataResponseBroker{NodeID: 9, Host: host, Port: port})
	}
}

var million = sync.OnceValue(func() []kmsg.MetadataResponseTopic {
	topics := make([]kmsg.MetadataResponseTopic, 1_000_000)
	for i := range topics {
		topics[i].Topic = kmsg.StringPtr(fmt.Sprintf("t%06d", i))
	}
	return topics
})

func TestAnEvilBroker(t *testing.T) {
	for name, e := range evils {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				c := w.cluster("A", three)
				p := w.up(Config{}, three...)
				registered := slices.Sorted(maps.Keys(w.conns))
				generation := p.Status().Snapshot.Generation
				if e.says != nil {
					lie(c, 3, []int32{1}, func(req kmsg.Request) *kmsg.MetadataResponse { return e.answer(c, req) })
				}
				w.mu.Lock()
				w.spoil = map[string]func(net.Conn) net.Conn{addr(9093): e.spoil}
				w.mu.Unlock()
				w.cut(9093) // so that it is on a new connection
				eventually(t, 10*time.Second, e.state, func() bool { return w.states()[addr(9093)] == e.state })
				for range cmp.Or(e.looks, 50) {
					time.Sleep(100 * time.Millisecond)
					if got := w.brokers(); !slices.Equal(got, []int32{0, 1, 2}) {
						t.Fatalf("lookups are answered with brokers %v", got)
					}
					if s := p.Status(); !s.Snapshot.Fresh || s.Snapshot.Generation != generation || s.Snapshot.Topics != 2 {
						t.Fatalf("the view: %+v", s.Snapshot)
					}
				}
				s := p.Status()
				if e.rejected != "" && s.Rejected[string(e.rejected)] == 0 {
					t.Errorf("refused are %v, want some for %s", s.Rejected, e.rejected)
				}
				if states := w.states(); states[addr(9092)] != "serving" || states[addr(9094)] != "serving" || states[addr(9093)] != e.state {
					t.Errorf("states %v", states)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if now := slices.Sorted(maps.Keys(w.conns)); !slices.Equal(now, registered) {
					t.Errorf("connections were tried to %v, registered are %v", now, registered)
				}
				var mem runtime.MemStats
				runtime.ReadMemStats(&mem)
				if held := mem.HeapInuse >> 20; held > 1024 {
					t.Errorf("%d MiB are held", held)
				}
			})
		})
	}
}

// answer is the truth about the three brokers, as the evil one tells it.
func (e evil) answer(c *kfake.Cluster, req kmsg.Request) *kmsg.MetadataResponse {
	r := req.(*kmsg.MetadataRequest)
	resp := truth3(c, r, 0, 1, 2)
	e.says(resp, r.Topics == nil)
	return resp
}
