// Package policy chooses a member of a pool for each request. A policy is one file, one line in Policies and one row in
// the conformance test.
package policy

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
}

// Picker picks members. It is safe for concurrent use, takes no lock and allocates nothing.
type Picker interface {
	// Pick returns an index into the members that the picker was made of, or -1 when there are none. client is the hash
	// of what the client is told apart by; policies that do not look at the client ignore it.
	Pick(client uint64) int
}

// Policies are the policies by the name that the configuration calls them.
var Policies = map[string]func([]Member) Picker{
	"round-robin": NewRoundRobin,
}
