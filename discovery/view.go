package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// View is the membership of a pool at one moment: whole, changed against the view before, never empty.
type View struct {
	// Generation counts views from 1.
	Generation uint64
	// Members are ascending by Addr, one an Addr. The slice belongs to the view and is never written to again.
	Members []Instance
	// Changes against the view before, ascending by Addr; never empty.
	Changes []Change
	// At is when it was decided.
	At time.Time
}

// Op is what happened to a member.
type Op byte

// The three kinds of Change, printed as they are.
const (
	Added   Op = '+'
	Removed Op = '-'
	Changed Op = '~'
)

// Cause is why a member came, went or changed: a bounded set, fit for a metric label.
type Cause string

// All causes.
const (
	// CauseListed: a provider lists an address that was no member.
	CauseListed Cause = "listed"
	// CauseRestored: taken from the state that the last run left on disk.
	CauseRestored Cause = "restored"
	// CauseUpdated: the registry changed its weight, rack, node id or warning.
	CauseUpdated Cause = "updated"
	// CauseHeld: gone from the registry for all of the hold, seen by two reads.
	CauseHeld Cause = "gone_for_hold"
	// CauseFailed: gone from the registry, and its own probe fails.
	CauseFailed Cause = "gone_and_failing"
	// CauseMaintenance: the registry has it in maintenance.
	CauseMaintenance Cause = "maintenance"
	// CauseUnfit: the registry has it, but as critical or otherwise not to be used.
	CauseUnfit Cause = "unfit"
	// CauseExplicit: gone from a list that is an operator's own words.
	CauseExplicit Cause = "gone_from_config"
	// CauseTombstone: removed by an operator's command.
	CauseTombstone Cause = "removed_by_operator"
)

// Change is one difference between two views.
type Change struct {
	Op Op
	// Instance is the member after the change; of a removed one, the member as it was.
	Instance Instance
	// Was is the member before a Changed.
	Was   Instance
	Cause Cause
	// Detail says the cause for a person: both values of what changed, how long it was gone.
	Detail string
}

// String is the line that the log prints: sign, address, source, cause.
func (c Change) String() string {
	return fmt.Sprintf("%c %s (%s): %s", c.Op, c.Instance.Addr(), c.Instance.Source, c.Detail)
}

// sortByAddr orders instances by the identity that members have.
func sortByAddr(in []Instance) {
	slices.SortFunc(in, func(a, b Instance) int { return strings.Compare(a.Addr(), b.Addr()) })
}

// differences says in words what changed between two entries of one address, "" when nothing that counts did.
func differences(was, is Instance) string {
	var d []string
	add := func(what string, a, b any) { d = append(d, fmt.Sprintf("%s %v -> %v", what, a, b)) }
	if was.Weight != is.Weight {
		add("weight", was.Weight, is.Weight)
	}
	if was.Rack != is.Rack {
		add("rack", cmp.Or(was.Rack, "none"), cmp.Or(is.Rack, "none"))
	}
	if was.NodeID != is.NodeID {
		add("node id", was.NodeID, is.NodeID)
	}
	if was.Warning != is.Warning {
		add("warning", was.Warning, is.Warning)
	}
	return strings.Join(d, ", ")
}
