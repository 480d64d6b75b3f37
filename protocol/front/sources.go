package front

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kvip/kvip/protocol/session"
)

// sources remembers the last closes of each address that was here lately: `kvip explain` asks by address, and of the rings
// of last closes a storm leaves nothing within a moment. Its size is fixed: an address has a place in one bucket, and
// a newcomer takes the place whose address was quiet for longest.
type sources struct {
	seed    maphash.Seed
	buckets [sourceBuckets]bucket
}

const (
	sourceBuckets = 1 << 10
	sourcePlaces  = 4
	// sourceCloses is how many of an address's closes are kept of each kind: by itself, and for a reason of ours.
	sourceCloses = 3
)

type bucket struct {
	mu     sync.Mutex
	places [sourcePlaces]source
}

type source struct {
	addr    netip.Addr
	at      int64 // of its last close, in nanoseconds of the wall clock
	written [2]uint32
	last    [2][sourceCloses]brief
}

// brief is a closed without its address.
type brief struct {
	at       int64
	age      time.Duration
	requests uint32
	port     uint16
	reason   session.Reason
}

func newSources() *sources { return &sources{seed: maphash.MakeSeed()} }

func (s *sources) bucket(addr netip.Addr) *bucket {
	return &s.buckets[maphash.Comparable(s.seed, addr)%sourceBuckets]
}

func (s *sources) add(c closed) {
	addr, at := c.peer.Addr().Unmap(), c.at.UnixNano()
	b := s.bucket(addr)
	b.mu.Lock()
	defer b.mu.Unlock()
	to := &b.places[0]
	for i := range b.places {
		p := &b.places[i]
		if p.addr == addr {
			to = p
			break
		}
		if p.at < to.at {
			to = p
		}
	}
	if to.addr != addr {
		*to = source{addr: addr}
	}
	k := c.kind()
	to.at = at
	to.last[k][to.written[k]%sourceCloses] = brief{at, c.age, uint32(min(c.requests, 1<<32-1)), c.peer.Port(), c.reason}
	to.written[k]++
}

// read returns an address's last closes, newest first.
func (s *sources) read(addr netip.Addr) []Closed {
	addr = addr.Unmap()
	b := s.bucket(addr)
	out := []Closed{}
	b.mu.Lock()
	for i := range b.places {
		p := &b.places[i]
		if p.addr != addr {
			continue
		}
		for k := range p.last {
			for _, c := range p.last[k][:min(p.written[k], sourceCloses)] {
				peer := netip.AddrPortFrom(addr, c.port)
				out = append(out, closed{time.Unix(0, c.at), peer, c.reason, uint64(c.requests), c.age}.shown())
			}
		}
	}
	b.mu.Unlock()
	slices.SortFunc(out, func(a, b Closed) int { return b.At.Compare(a.At) })
	return out
}
