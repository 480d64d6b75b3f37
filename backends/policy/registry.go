// Package policy chooses a member of a pool for each request. A policy is one file, one line in Policies and one row in
// the conformance test. What holds whatever the policy is in build.go: members that get a part of their share only, and
// the preference for a zone.
package policy

import "sync/atomic"

// Member is one broker that may be picked.
type Member struct {
	// Addr is the registered host:port, unique in a pool: placement depends on it, not on the order of members.
	Addr string
	// NodeID is the broker's node id, -1 when unknown.
	NodeID int32
	Rack   string
	// Weight is the member's share relative to the others. 0 or less means that it is picked only when no member has
	// more.
	Weight int
	// Load counts the requests that wait for the member's answer; nil means none.
	Load *atomic.Int64
	// Part is how much of its share the member gets, in thousandths; nil means all of it.
	Part *atomic.Int32
}

// Picker picks members. It is safe for concurrent use, takes no lock and allocates nothing.
type Picker interface {
	// Pick returns an index into the members that the picker was made of, or -1 when there are none. client is the key
	// of the client: 48 bits that tell its address apart, and its port in the lowest 16. Policies that do not look at
	// the client ignore it.
	Pick(client uint64) int
	// Explain picks, and says for a person how. It may allocate.
	Explain(client uint64) (member int, why string)
}

// Policy is one way of picking.
type Policy struct {
	// New makes a picker of members. was is an earlier picker of the same policy or nil: what it has worked out may be
	// used again.
	New func(members []Member, was Picker) Picker
	// Key is the part of the client's key that alone decides whom the client gets; nil when the client does not matter.
	Key func(client uint64) uint64
	// Doc says in a line when to take it.
	Doc string
}

// Policies are the policies by the name that the configuration calls them.
var Policies = map[string]Policy{
	"ring":           {New: newRing, Key: address, Doc: "a client keeps its broker while the pool changes (consistent hashing of its address)"},
	"source-hash":    {New: newSourceHash, Key: whole, Doc: "as an L4 balancer: a hash of address and port, which any change of the pool deals anew"},
	"round-robin":    {New: newRoundRobin, Doc: "in turn, by weight: the most even, for brokers whose differences are known"},
	"least-inflight": {New: newLeastInFlight, Doc: "the less loaded of two drawn at random: for loads that come in bursts"},
	"same-queue":     {New: newSameQueue, Doc: "as far as each is below the average queue: for brokers that differ steadily in speed"},
}

// address is the part of a client's key that its address decides.
func address(client uint64) uint64 { return client &^ 0xffff }

func whole(client uint64) uint64 { return client }

// mix spreads the bits of x over all 64 (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// load is how many requests wait for a member.
func (m *Member) load() int64 {
	if m.Load == nil {
		return 0
	}
	return m.Load.Load()
}
