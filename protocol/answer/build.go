package answer

import "github.com/kvip/kvip/backends/snapshot"

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

// Set is the immutable collection of ready answers for one Input.
type Set struct{}

// Build makes the answers; versions that prev was asked for are encoded before it returns.
func Build(in Input, prev *Set) *Set { return &Set{} }
