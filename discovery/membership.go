package discovery

import (
	"time"
)

// DefaultShrinkHold is how long an unexplained removal is held back.
const DefaultShrinkHold = 60 * time.Second

// ProbeState is what the pool's own probe says about a member.
type ProbeState int

// What a probe can say.
const (
	Unprobed ProbeState = iota // no verdict yet
	Passing
	Failing
)

// Rules are what a Membership decides by.
type Rules struct {
	// Providers are the names whose updates count, in the order of their say: where two list one address, the first
	// one's weight and warning hold, and its rack and node id unless it has none.
	Providers []string
	// ShrinkHold is how long a member must be missing from the registry before it goes; 0 is DefaultShrinkHold.
	ShrinkHold time.Duration
	// Probe says what the pool's own probe thinks of a member; nil is Unprobed for all.
	Probe func(addr string) ProbeState
}

// Membership turns what providers say into a pool's members. An answer is a proposal:
//
//   - a new entry, and a changed weight, rack, node id or warning, is taken at once;
//   - a failed read changes nothing, and neither does an answer that leaves no provider listing anything;
//   - a member that no provider lists any more goes after Rules.ShrinkHold, once a non-stale read at or after that moment
//     still lacks it (so two reads, a hold apart); while its own probe fails it goes at the first such read;
//   - one that an Explicit list no longer has, or that an operator removed (SetTombstones), goes at once;
//   - whatever is said, the last member stays.
//
// It has no clock, no lock and no goroutine: every call takes the time. Watcher drives it.
type Membership struct {
	rules Rules
}

// NewMembership returns a membership without members.
func NewMembership(r Rules) *Membership { return &Membership{rules: r} }

// Restore makes members of what the last run left on disk, to be confirmed by the providers as any member is. It is for
// the start, before the first Apply. ok is false when members is empty.
func (m *Membership) Restore(members []Instance, now time.Time) (v View, ok bool) { return View{}, false }

// Apply takes one update. ok says that the membership changed, and v is the new view.
func (m *Membership) Apply(u Update, now time.Time) (v View, ok bool) { return View{}, false }

// Tick reconsiders what is held back, because time has passed or a probe has changed its mind.
func (m *Membership) Tick(now time.Time) (v View, ok bool) { return View{}, false }

// SetTombstones replaces the addresses that an operator has removed: they are no members, whatever a registry lists.
func (m *Membership) SetTombstones(addrs []string, now time.Time) (v View, ok bool) {
	return View{}, false
}

// Members returns the current members, ascending by Addr.
func (m *Membership) Members() []Instance { return nil }

// Held returns the members that no provider lists and that stay for now, ascending by Addr.
func (m *Membership) Held() []Held { return nil }

// Next returns the providers that must read again before anything that is held can go, and when. ok is false when
// nothing waits for a read.
func (m *Membership) Next() (at time.Time, providers []string, ok bool) { return time.Time{}, nil, false }

// Held is a member that the registry no longer lists and that is still a member.
type Held struct {
	Addr string `json:"addr"`
	// Since is the first non-stale read that lacked it.
	Since time.Time `json:"since"`
	// Due is when the hold ends.
	Due time.Time `json:"due"`
	// Reads are the non-stale reads that lacked it.
	Reads int `json:"reads"`
	// Why says what keeps it.
	Why string `json:"why"`
}
