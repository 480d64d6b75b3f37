package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
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

// Reasons has every reason, in the order in which a candidate's first one is counted.
var Reasons = []Reason{
	NoBrokers, WrongCluster, BadAddress, VIPAddress, SharedAddress, Controller, ErrorCode, Malformed,
	Shrunk, Moved, TopicIDBack, LowerEpoch, TopicRecreated, TopicGone, HalfBuilt,
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

// Read makes a candidate of one broker's answers: Metadata for all topics and, where the cluster has it, DescribeCluster
// (else nil). kraft says which kind of controller id they have. prev, the view so far or nil, supplies the controller
// where the broker knows none. The responses become part of the candidate.
func Read(meta *kmsg.MetadataResponse, desc *kmsg.DescribeClusterResponse, kraft bool, prev *Snapshot, rules Rules) (*Candidate, *Fault) {
	if meta.ErrorCode != 0 {
		return nil, faultf(ErrorCode, "Metadata: %v", kerr.ErrorForCode(meta.ErrorCode))
	}
	if len(meta.Brokers) == 0 {
		return nil, faultf(NoBrokers, "the broker list is empty, with %d topics", len(meta.Topics))
	}
	if id := deref(meta.ClusterID); id != rules.ClusterID {
		return nil, faultf(WrongCluster, "the cluster id is %q, the pool's is %q", id, rules.ClusterID)
	}
	s := &Snapshot{ClusterID: rules.ClusterID, KRaft: kraft, Brokers: meta.Brokers}
	slices.SortFunc(s.Brokers, func(a, b kmsg.MetadataResponseBroker) int { return cmp.Compare(a.NodeID, b.NodeID) })
	if f := checkBrokers(s.Brokers, rules); f != nil {
		return nil, f
	}
	s.ControllerID = controller(s, meta.ControllerID, prev)
	if desc != nil {
		if f := s.describe(desc, rules); f != nil {
			return nil, f
		}
	}
	c := &Candidate{Snapshot: s}
	if f := c.topics(meta); f != nil {
		return nil, f
	}
	return c, nil
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
	case host == "" || strings.ContainsAny(host, "[]*/ ") || err == nil && ip.IsUnspecified():
		return faultf(BadAddress, "node id %d advertises the host %q: fix its advertised.listeners", id, host)
	case port < 1 || port > 65535:
		return faultf(BadAddress, "node id %d advertises the port %d: fix its advertised.listeners", id, port)
	case rules.VIP != nil && rules.VIP(host, port):
		return faultf(VIPAddress, "node id %d advertises the VIP's own address %s:%d: fix its advertised.listeners", id, host, port)
	}
	return nil
}

// describe takes over the brokers of DescribeCluster.
func (s *Snapshot) describe(desc *kmsg.DescribeClusterResponse, rules Rules) *Fault {
	const endpointBrokers = 1
	switch {
	case desc.ErrorCode != 0:
		return faultf(ErrorCode, "DescribeCluster: %v", kerr.ErrorForCode(desc.ErrorCode))
	case desc.Version >= 1 && desc.EndpointType != endpointBrokers:
		return faultf(Controller, "DescribeCluster answers with endpoint type %d, brokers are %d", desc.EndpointType, endpointBrokers)
	case desc.ClusterID != rules.ClusterID:
		return faultf(WrongCluster, "DescribeCluster's cluster id is %q, the pool's is %q", desc.ClusterID, rules.ClusterID)
	case len(desc.Brokers) == 0:
		return faultf(NoBrokers, "DescribeCluster lists no broker")
	}
	s.Described = desc.Brokers
	slices.SortFunc(s.Described, func(a, b kmsg.DescribeClusterResponseBroker) int { return cmp.Compare(a.NodeID, b.NodeID) })
	for i, b := range s.Described {
		if i > 0 && s.Described[i-1].NodeID == b.NodeID {
			return faultf(Malformed, "DescribeCluster lists node id %d twice", b.NodeID)
		}
		if f := checkAddress(b.NodeID, b.Host, b.Port, rules); f != nil {
			return f
		}
	}
	return nil
}

func (c *Candidate) topics(meta *kmsg.MetadataResponse) *Fault {
	s := c.Snapshot
	byName := func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(deref(a.Topic), deref(b.Topic)) }
	slices.SortFunc(meta.Topics, byName)
	s.Topics = meta.Topics[:0]
	last := ""
	for _, t := range meta.Topics {
		name := deref(t.Topic)
		if name == "" || name == last {
			return faultf(Malformed, "the topic %q is listed without a name or twice", name)
		}
		last = name
		if t.ErrorCode != 0 || len(t.Partitions) == 0 {
			c.Errored = append(c.Errored, name)
			continue
		}
		slices.SortFunc(t.Partitions, func(a, b kmsg.MetadataResponseTopicPartition) int {
			return cmp.Compare(a.Partition, b.Partition)
		})
		for i, p := range t.Partitions {
			if p.Partition < 0 || i > 0 && t.Partitions[i-1].Partition == p.Partition {
				return faultf(Malformed, "topic %q has partition %d twice, or below 0", name, p.Partition)
			}
		}
		s.HasTopicIDs = s.HasTopicIDs || t.TopicID != [16]byte{}
		s.Topics = append(s.Topics, t)
	}
	clear(meta.Topics[len(s.Topics):])
	if len(meta.Topics) == 0 {
		s.HasTopicIDs = meta.Version >= 10 // nothing to tell by: Metadata has had ids since v10
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
