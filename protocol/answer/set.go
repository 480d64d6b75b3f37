// Package answer turns one accepted snapshot of a cluster into the bytes of every answer that kvip gives by itself.
// The pieces are encoded once a snapshot and version (brokers, each topic); an answer puts slices of them together, with
// the request's correlation id in front: no decoding, no allocation and no lock a lookup.
package answer

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/wire"
)

// Input is everything that local answers are made of.
type Input struct {
	// Snapshot is the accepted view.
	Snapshot *snapshot.Snapshot
	// APIs is the overlap of the pool's brokers; Build caps the keys that kvip answers itself to what it encodes.
	APIs *snapshot.APIs
	// Heads are the node ids that may head a broker list, so that clients that take the first one spread; empty: every
	// listed broker in turn.
	Heads []int32
	// Pick chooses among Heads for a client; nil: in turn.
	Pick func(client uint64) int
}

// Set is the immutable collection of ready answers for one Input. It is safe for concurrent use.
type Set struct {
	in    Input
	heads []int32 // rotations: indices into Snapshot.Brokers
	turn  atomic.Uint32

	versions versions
	api      apiVersions
	metadata *metadata
	describe describeCluster
}

// Verdict is what a Set says of a request.
type Verdict uint8

const (
	// Answered: the answer is in the Out.
	Answered Verdict = iota
	// Forward: only a broker can answer it.
	Forward
	// Close: a broker would close the connection; the fault says why.
	Close
	// Later: the answer is being encoded for the first time; ask again soon.
	Later
)

// Request is one request as an answerer gets it: parsed header, body in place.
type Request struct {
	wire.Header
	Body []byte
	// TagLimit bounds tagged fields a section.
	TagLimit int
	// Client is the key of the client that policies pick by.
	Client uint64
}

// Build makes the answers for in. The versions that prev's clients asked for are encoded before it returns, so that a
// refresh never makes a lookup wait; the others are encoded when first asked for.
func Build(in Input, prev *Set) *Set {
	s := &Set{in: in}
	s.heads = rotations(in)
	if prev != nil {
		s.turn.Store(prev.turn.Load())
	}
	if prev != nil && prev.in.APIs == in.APIs {
		s.versions, s.api = prev.versions, prev.api
	} else {
		s.versions, s.api = newVersions(in.APIs), newApiVersions(in.APIs)
	}
	if prev != nil && sameDescribed(in.Snapshot, prev.in.Snapshot) {
		s.describe = prev.describe
	} else {
		s.describe = newDescribeCluster(in.Snapshot)
	}
	if prev != nil && prev.in.Snapshot == in.Snapshot {
		s.metadata = prev.metadata // only versions or heads have changed
	} else {
		s.metadata = newMetadata(s, prev)
	}
	return s
}

// Snapshot returns what s was built from.
func (s *Set) Snapshot() *snapshot.Snapshot { return s.in.Snapshot }

// Answer answers q from memory into out, or says why it cannot. Only keys of the registry may be given, and only
// versions that Check accepts.
func (s *Set) Answer(out *Out, q *Request) (Verdict, wire.Fault) {
	return answerers[q.Key](s, out, q)
}

// Check says whether the pool's brokers serve that version of that key, as a broker would. ApiVersions is answered at any
// version.
func (s *Set) Check(key, version int16) wire.Fault {
	if key == wire.KeyApiVersions {
		return wire.OK
	}
	return s.versions.check(key, version)
}

// rotations maps Heads to positions in the broker list.
func rotations(in Input) []int32 {
	brokers := in.Snapshot.Brokers
	rs := make([]int32, 0, max(len(in.Heads), len(brokers)))
	for _, id := range in.Heads {
		i, listed := slices.BinarySearchFunc(brokers, id, func(b kmsg.MetadataResponseBroker, id int32) int {
			return cmp.Compare(b.NodeID, id)
		})
		if !listed {
			rs = rs[:0] // a head that is not listed (any more): fall back to every broker in turn
			break
		}
		rs = append(rs, int32(i))
	}
	if len(rs) == 0 {
		for i := range brokers {
			rs = append(rs, int32(i))
		}
	}
	return rs
}

// rotation returns which broker heads the next answer for client.
func (s *Set) rotation(client uint64) int {
	if s.in.Pick != nil && len(s.heads) == len(s.in.Heads) {
		if i := s.in.Pick(client); i >= 0 && i < len(s.heads) {
			return int(s.heads[i])
		}
	}
	return int(s.heads[int(s.turn.Add(1)-1)%len(s.heads)])
}
