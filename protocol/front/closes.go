package front

import (
	"net/netip"
	"sync"
	"time"

	"github.com/kvip/kvip/protocol/session"
)

// Closed is one ended connection, as the ring of last closes keeps it.
type Closed struct {
	At       time.Time      `json:"at"`
	Peer     netip.AddrPort `json:"peer"`
	Reason   string         `json:"reason"`
	Requests uint64         `json:"requests"`
	Age      string         `json:"age"`
}

// ringSize is how many closes each loop keeps. Clients that left by themselves are kept apart, so that a storm of them
// does not push the interesting ones out.
const ringSize = 128

type closed struct {
	at       time.Time
	peer     netip.AddrPort
	reason   session.Reason
	requests uint64
	age      time.Duration
}

// kind tells clients that left by themselves, 0, from ends for a reason of ours, 1.
func (c closed) kind() int {
	if c.reason == session.ReasonClient {
		return 0
	}
	return 1
}

func (c closed) shown() Closed {
	return Closed{c.at, c.peer, c.reason.String(), c.requests, c.age.Round(time.Millisecond).String()}
}

// ring keeps the last closes of one loop. The loop writes; status reads.
type ring struct {
	mu      sync.Mutex
	last    [2][ringSize]closed // by themselves, and for a reason of ours
	written [2]int
}

func (r *ring) add(c closed) {
	kind := c.kind()
	r.mu.Lock()
	r.last[kind][r.written[kind]%ringSize] = c
	r.written[kind]++
	r.mu.Unlock()
}

func (r *ring) read(dst []Closed) []Closed {
	r.mu.Lock()
	defer r.mu.Unlock()
	for kind := range r.last {
		for _, c := range r.last[kind][:min(r.written[kind], ringSize)] {
			dst = append(dst, c.shown())
		}
	}
	return dst
}
