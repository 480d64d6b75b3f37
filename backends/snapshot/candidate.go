package snapshot

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Reason is why a candidate is refused: snake_case, a bounded set, fit for a metric label.
type Reason string

// Reasons for which a candidate is refused whatever the other brokers say.
const (
	NoBrokers     Reason = "no_brokers"     // an empty broker list, as a starting broker gives (KAFKA-7924)
	WrongCluster  Reason = "wrong_cluster"  // another cluster's id
	BadAddress    Reason = "bad_address"    // a wildcard, an empty host, a port out of range
	VIPAddress    Reason = "vip_address"    // a broker advertises the VIP
	SharedAddress Reason = "shared_address" // two node ids on one host:port (librdkafka #4212)
	Controller    Reason = "controller"     // the answer describes controllers, not brokers
	ErrorCode     Reason = "error_code"     // the broker answered with a top-level error
	Malformed     Reason = "malformed"      // bytes that do not decode, or say one thing twice
)

// Reasons for which a candidate is doubted: each may be legitimate, so it is adopted once most reachable brokers agree.
const (
	Shrunk         Reason = "shrunk"          // a broker is no longer listed
	Moved          Reason = "moved"           // a node id has another address
	TopicIDBack    Reason = "topic_id_back"   // a topic has an id that it had before
	LowerEpoch     Reason = "lower_epoch"     // a partition's leader epoch fell
	TopicRecreated Reason = "topic_recreated" // a topic has a new id
	TopicGone      Reason = "topic_gone"      // a topic is no longer listed
	HalfBuilt      Reason = "half_built"      // a topic lost partitions, or has an error where it had none
)

// UnknownVersions is why a candidate waits that the brokers agree on: it lists a new broker that has not told yet which
// versions it serves.
const UnknownVersions Reason = "unknown_versions"

// Reasons has every reason, in the order in which a candidate's first one is counted.
var Reasons = []Reason{
	NoBrokers, WrongCluster, BadAddress, VIPAddress, SharedAddress, Controller, ErrorCode, Malformed,
	Shrunk, Moved, TopicIDBack, LowerEpoch, TopicRecreated, TopicGone, HalfBuilt,
	UnknownVersions,
}

// Fault is a reason with the values that it was found by.
type Fault struct {
	Reason Reason
	Detail string
}

func (f *Fault) Error() string { return string(f.Reason) + ": " + f.Detail }

func faultf(r Reason, format string, args ...any) *Fault {
	return &Fault{r, fmt.Sprintf(format, args...)}
}

// Candidate is one broker's word, to be judged. Its snapshot has no generation yet.
type Candidate struct {
	Snapshot *Snapshot
	// Errored are the topics, ascending, that the broker listed with an error or without partitions. They are not in
	// the snapshot: who asks for them is forwarded.
	Errored []string
}

// Rules are what no candidate may break.
type Rules struct {
	// ClusterID is the pool's.
	ClusterID string
	// VIP says that host:port is one by which clients reach the VIP.
	VIP func(host string, port int32) bool
}

// controller returns a controller id that is in the answer: the broker's word, else the one so far, else the first.
func controller(s *Snapshot, said int32, prev *Snapshot) int32 {
	if s.Broker(said) != nil {
		return said
	}
	if prev != nil && s.Broker(prev.ControllerID) != nil {
		return prev.ControllerID
	}
	return s.Brokers[0].NodeID
}

func checkBrokers(brokers []kmsg.MetadataResponseBroker, rules Rules) *Fault {
	at := make(map[string]int32, len(brokers))
	for i, b := range brokers {
		if i > 0 && brokers[i-1].NodeID == b.NodeID {
			return faultf(Malformed, "node id %d is listed twice", b.NodeID)
		}
		if f := checkAddress(b.NodeID, b.Host, b.Port, rules); f != nil {
			return f
		}
		addr := fmt.Sprintf("%s:%d", strings.ToLower(b.Host), b.Port)
		if other, ok := at[addr]; ok {
			return faultf(SharedAddress, "node ids %d and %d are both at %s: fix advertised.listeners of one", other, b.NodeID, addr)
		}
		at[addr] = b.NodeID
	}
	return nil
}

func checkAddress(id int32, host string, port int32, rules Rules) *Fault {
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "" || strings.ContainsAny(host, "[]*/ ") || err == nil && (ip.IsUnspecified() || ip.Unmap().IsLinkLocalUnicast()):
		return faultf(BadAddress, "node id %d advertises the host %q: fix its advertised.listeners", id, host)
	case port < 1 || port > 65535:
		return faultf(BadAddress, "node id %d advertises the port %d: fix its advertised.listeners", id, port)
	case rules.VIP != nil && rules.VIP(host, port):
		return faultf(VIPAddress, "node id %d advertises the VIP's own address %s:%d: fix its advertised.listeners", id, host, port)
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
