package backends

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
)

// State is what a member may be used for.
type State string

// The states of a member.
const (
	// Unknown: no probe has decided yet, or the pool's cluster id is not known yet.
	Unknown State = "unknown"
	// Serving: the registry lists it and its probe passes; it is asked, and may head answers.
	Serving State = "serving"
	// Trial: it has been ejected, and gets a small share until it has shown that it is well.
	Trial State = "trial"
	// Ejected: its probe passes, and it does much worse than the others, or comes and goes, or the cluster has fenced it;
	// it is not asked for a time.
	Ejected State = "ejected"
	// Draining: its probe passes, its weight is 0; connections that stick to it keep it, nothing new goes there.
	Draining State = "draining"
	// Down: its probe fails.
	Down State = "down"
	// Quarantined: it answers, but it is not what the registry takes it for. The reason says what it is.
	Quarantined State = "quarantined"
)

// States has every state.
var States = []State{Unknown, Serving, Trial, Ejected, Draining, Down, Quarantined}

// Reasons for a quarantine that the pool finds by itself; the others are the probe's.
const (
	reasonOtherListener healthcheck.Reason = "other_listener" // it gives other addresses for known node ids
	reasonDuplicate     healthcheck.Reason = "duplicate_node" // another member is the same node
)

// member is one registered broker. Its fields belong to the pool's writer, but for status and result.
type member struct {
	inst  discovery.Instance
	addr  string
	state State
	// reason and detail say why it is not serving.
	reason healthcheck.Reason
	detail string
	since  time.Time

	health  healthcheck.State
	verdict healthcheck.Verdict
	// mistaken is the identity fault of the last verdict that had one, until one passes.
	mistaken healthcheck.Reason
	// nodeID is the registry's until a probe tells it.
	nodeID    int32
	clusterID string
	// brokers is what its own Metadata lists; sum tells lists apart.
	brokers []kmsg.MetadataResponseBroker
	sum     uint64
	// compared is the snapshot that other was found by.
	compared *snapshot.Snapshot
	other    bool
	// apis is its table as of the last probe in which it was known to be of the pool's cluster.
	apis *snapshot.APIs

	// listing is what the snapshot says about it.
	listing listing
	// shown says that status has its state as it is, and shownIn as of which snapshot.
	shown   bool
	shownIn *snapshot.Snapshot
	// checker probes it; verdicts of another one are not its.
	checker healthcheck.Checker
	// part is how much of its share of forwards it gets, in thousandths, nil for all; rising is when it began to grow.
	part   *atomic.Int32
	rising time.Time
	// result is the last probe's, handed over by the probing goroutine.
	result atomic.Pointer[probe.Result]
	// status is the copy that readers take.
	status atomic.Pointer[MemberStatus]
}

// listing is what one snapshot says about a member of one node id.
type listing struct {
	in     *snapshot.Snapshot
	nodeID int32
	listed bool
	rack   *string
}

// listedIn says whether a snapshot lists the member, and its rack there, nil when it has none.
func (m *member) listedIn(s *snapshot.Snapshot) (listed bool, rack *string) {
	l := &m.listing
	if l.in != s || l.nodeID != m.nodeID {
		*l = listing{in: s, nodeID: m.nodeID}
		if s != nil {
			if b := s.Broker(m.nodeID); b != nil {
				l.listed, l.rack = true, b.Rack
			}
		}
	}
	return l.listed, l.rack
}

func newMember(inst discovery.Instance) *member {
	return &member{inst: inst, addr: inst.Addr(), nodeID: inst.NodeID, state: Unknown, since: time.Now()}
}

// usable says that forwards may go to a member.
func (m *member) usable() bool {
	return m.state == Serving || m.state == Trial || m.state == Draining
}

// passing says that its probe passes and that it is who it should be, whatever else there is to say about it.
func (m *member) passing() bool { return m.usable() || m.state == Ejected }

// identityFault says that a broker answers but is another one, which counts at once, without waiting for the fall.
func identityFault(r healthcheck.Reason) bool {
	return r == probe.ReasonWrongCluster || r == probe.ReasonWrongNode || r == probe.ReasonController
}

// heard takes over what a probe saw. changed says that something the pool decides by is new.
func (m *member) heard(ev healthcheck.Event, clusterID string) (changed bool) {
	m.shown = false
	changed = ev.State != m.health || ev.Verdict.Reason != m.verdict.Reason
	m.health, m.verdict = ev.State, ev.Verdict
	switch {
	case ev.Verdict.Passed():
		m.mistaken = healthcheck.OK
	case identityFault(ev.Verdict.Reason):
		m.mistaken = ev.Verdict.Reason
	}
	r := m.result.Load()
	if r == nil {
		return changed
	}
	if r.Listed {
		if !sameList(r.Brokers, m.brokers) { // most lists are the very one of the last probe
			if sum := sumBrokers(r.Brokers); sum != m.sum {
				m.sum, m.compared, changed = sum, nil, true
			}
			m.brokers = r.Brokers
		}
		changed = changed || m.clusterID != r.ClusterID
		m.clusterID = r.ClusterID
	}
	if r.NodeID >= 0 && r.NodeID != m.nodeID {
		m.nodeID, changed = r.NodeID, true
	}
	if m.mistaken == healthcheck.OK && ofCluster(r, clusterID) {
		changed = changed || !snapshot.SameAPIs(m.apis, r.APIs)
		m.apis = r.APIs
	}
	return changed
}

// ofCluster says that a probe's table is that of a broker of the cluster: a broker that has not said so on the same
// connection may be another one by now, and says nothing about this cluster.
func ofCluster(r *probe.Result, clusterID string) bool {
	return r.APIs != nil && clusterID != "" && r.ClusterID == clusterID
}

// judge derives a member's state from its own facts; the pool adds those that take a look at the others.
func (m *member) judge(clusterID string) (State, healthcheck.Reason, string) {
	switch {
	case m.health == healthcheck.Unknown:
		return Unknown, "", "not probed yet"
	case clusterID != "" && m.clusterID != "" && m.clusterID != clusterID:
		return Quarantined, probe.ReasonWrongCluster, fmt.Sprintf("its cluster id is %s, the pool's is %s", m.clusterID, clusterID)
	case m.mistaken != healthcheck.OK:
		return Quarantined, m.mistaken, m.verdict.Detail
	case m.health == healthcheck.Down:
		return Down, m.verdict.Reason, m.verdict.Detail
	case clusterID == "":
		return Unknown, "", "the pool's cluster id is not known yet"
	case m.inst.Weight <= 0:
		return Draining, "", "its weight is 0: kvip pool undrain if kvip pool drained it, else a weight in the registry, brings it back"
	}
	return Serving, "", ""
}

// onOtherListener says whether the member lists most of the node ids that it shares with a snapshot at other addresses:
// then it was asked on another listener. A single node that moved does not make it so.
func (m *member) onOtherListener(s *snapshot.Snapshot) bool {
	if s == nil || m.compared == s {
		return m.other && s != nil
	}
	m.compared, m.other = s, mostlyElsewhere(m.brokers, s.Brokers)
	return m.other
}

// mostlyElsewhere compares two lists ascending by node id.
func mostlyElsewhere(a, b []kmsg.MetadataResponseBroker) bool {
	shared, elsewhere := 0, 0
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i].NodeID < b[j].NodeID:
			i++
		case a[i].NodeID > b[j].NodeID:
			j++
		default:
			shared++
			if a[i].Port != b[j].Port || !strings.EqualFold(a[i].Host, b[j].Host) {
				elsewhere++
			}
			i++
			j++
		}
	}
	return 2*elsewhere > shared
}

// crossExamine finds the quarantines that only a look at all members shows, among those whose own facts let them be used.
// cur is the view, or nil: then the listener that most members are on is the pool's.
func crossExamine(members []*member, cur *snapshot.Snapshot) {
	usable := slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return !m.usable() })
	quarantine := func(m *member, r healthcheck.Reason, detail string) {
		m.state, m.reason, m.detail = Quarantined, r, detail
	}
	ref := cur
	if ref == nil {
		ref = commonList(usable)
	}
	others := slices.DeleteFunc(slices.Clone(usable), func(m *member) bool { return !m.onOtherListener(ref) })
	// If most members disagree with the view, it is the view that is out of date: the refresh will tell.
	if 2*len(others) <= len(usable) {
		for _, m := range others {
			quarantine(m, reasonOtherListener, "it gives other addresses for the brokers than the pool's listener does: "+
				"register the address of that listener")
		}
	}
	byNode := make(map[int32]*member, len(usable))
	for _, m := range usable {
		if !m.usable() || m.nodeID < 0 {
			continue
		}
		kept, ok := byNode[m.nodeID]
		if !ok {
			byNode[m.nodeID] = m
			continue
		}
		if m.advertised() && !kept.advertised() {
			kept, m = m, kept
			byNode[kept.nodeID] = kept
		}
		quarantine(m, reasonDuplicate, fmt.Sprintf("it is node %d, as %s is: register each broker once", m.nodeID, kept.addr))
	}
}

// leaveOutFenced ejects members that the cluster has fenced: one that is cut off from the controller does not know it, and
// its probe passes. If half of those that may be used are, the view is that of a broker which is cut off.
func leaveOutFenced(members []*member, cur *snapshot.Snapshot) {
	usable := slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return !m.usable() })
	fenced := slices.DeleteFunc(slices.Clone(usable), func(m *member) bool { return !isFenced(cur, m.nodeID) })
	if 2*len(fenced) >= len(usable) {
		return
	}
	for _, m := range fenced {
		m.state, m.reason, m.detail = Ejected, probe.ReasonFenced, "the cluster has fenced it, which it does not know: "+
			"it is cut off from the controller"
	}
}

// isFenced says that a view has that broker as fenced, which DescribeCluster tells from v2 on (KIP-1073).
func isFenced(s *snapshot.Snapshot, id int32) bool {
	i, ok := slices.BinarySearchFunc(s.Described, id, func(b kmsg.DescribeClusterResponseBroker, id int32) int {
		return int(b.NodeID) - int(id)
	})
	return ok && s.Described[i].IsFenced
}

// advertised says that the member is registered at the address that it advertises itself.
func (m *member) advertised() bool {
	for _, b := range m.brokers {
		if b.NodeID == m.nodeID {
			return b.Port == int32(m.inst.Port) && strings.EqualFold(b.Host, m.inst.Host)
		}
	}
	return false
}

// commonList returns the list that most members give, as a snapshot of brokers alone; of two equally common ones that of
// a member which is registered as it advertises itself, then the first by address. nil when no member has a list.
func commonList(members []*member) *snapshot.Snapshot {
	votes := make(map[uint64]int)
	for _, m := range members {
		if len(m.brokers) > 0 {
			votes[m.sum]++
		}
	}
	var best *member
	for _, m := range members {
		switch {
		case len(m.brokers) == 0:
		case best == nil, votes[m.sum] > votes[best.sum],
			votes[m.sum] == votes[best.sum] && m.advertised() && !best.advertised():
			best = m
		}
	}
	if best == nil {
		return nil
	}
	return &snapshot.Snapshot{Brokers: best.brokers}
}

// sameList says that two lists are one in memory.
func sameList(a, b []kmsg.MetadataResponseBroker) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
}

// sumBrokers tells broker lists apart.
func sumBrokers(brokers []kmsg.MetadataResponseBroker) uint64 {
	d := xxhash.New()
	var numbers [12]byte
	for _, b := range brokers {
		binary.BigEndian.PutUint32(numbers[:], uint32(b.NodeID))
		binary.BigEndian.PutUint32(numbers[4:], uint32(b.Port))
		binary.BigEndian.PutUint32(numbers[8:], uint32(len(b.Host)))
		_, _ = d.Write(numbers[:])
		_, _ = d.WriteString(b.Host)
	}
	return d.Sum64()
}

// majorityCluster returns the cluster id that most of the members that gave one gave, or "" and what they gave.
func majorityCluster(members []*member) (id, disagreement string) {
	votes := make(map[string][]string)
	total := 0
	for _, m := range members {
		if m.clusterID != "" {
			votes[m.clusterID] = append(votes[m.clusterID], m.addr)
			total++
		}
	}
	var said []string
	for id, addrs := range votes {
		if 2*len(addrs) > total {
			return id, ""
		}
		said = append(said, fmt.Sprintf("%s (%s)", id, strings.Join(addrs, ", ")))
	}
	slices.Sort(said)
	return "", strings.Join(said, " against ")
}
