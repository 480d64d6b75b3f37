package snapshot

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const cluster = "A"

var rules = Rules{ClusterID: cluster, VIP: func(host string, port int32) bool { return host == "vip" && port == 9092 }}

// answers are what a broker of a small sound cluster says: brokers 0 to 2, topic "orders" of three partitions with epoch
// 5, topic "audit" of one.
type answers struct {
	meta kmsg.MetadataResponse
	desc *kmsg.DescribeClusterResponse
}

func sound() *answers {
	a := &answers{meta: kmsg.MetadataResponse{Version: 12, ClusterID: kmsg.StringPtr(cluster), ControllerID: 1}}
	desc := kmsg.NewDescribeClusterResponse()
	desc.Version, desc.ClusterID, desc.ControllerID = 2, cluster, 1
	for id := range int32(3) {
		a.meta.Brokers = append(a.meta.Brokers, kmsg.MetadataResponseBroker{NodeID: id, Host: fmt.Sprintf("b%d", id), Port: 9092})
		desc.Brokers = append(desc.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: id, Host: fmt.Sprintf("b%d", id), Port: 9092})
	}
	a.desc = &desc
	a.topic("orders", 'o', 3)
	a.topic("audit", 'a', 1)
	return a
}

func (a *answers) topic(name string, id byte, partitions int32) {
	t := kmsg.MetadataResponseTopic{Topic: kmsg.StringPtr(name), TopicID: [16]byte{id}}
	for p := range partitions {
		t.Partitions = append(t.Partitions, kmsg.MetadataResponseTopicPartition{
			Partition: p, Leader: p % 3, LeaderEpoch: 5, Replicas: []int32{0, 1, 2}, ISR: []int32{0, 1, 2},
		})
	}
	a.meta.Topics = append(a.meta.Topics, t)
}

// of returns the topic of that name to be changed.
func (a *answers) of(name string) *kmsg.MetadataResponseTopic {
	for i := range a.meta.Topics {
		if *a.meta.Topics[i].Topic == name {
			return &a.meta.Topics[i]
		}
	}
	panic("no topic " + name)
}

func (a *answers) without(name string) {
	t := a.of(name)
	*t = a.meta.Topics[len(a.meta.Topics)-1]
	a.meta.Topics = a.meta.Topics[:len(a.meta.Topics)-1]
}

// readBy reads the answers as they are on the wire.
func (a *answers) readBy(r *Reader, kraft bool, prev *Snapshot) (*Candidate, *Fault) {
	var desc *Encoded
	if a.desc != nil {
		desc = &Encoded{a.desc.Version, a.desc.AppendTo(nil)}
	}
	return r.Read(Encoded{a.meta.Version, a.meta.AppendTo(nil)}, desc, kraft, prev, rules)
}

func (a *answers) read(t *testing.T) *Candidate {
	t.Helper()
	c, fault := a.readBy(new(Reader), true, nil)
	if fault != nil {
		t.Fatalf("a sound answer is refused: %v", fault)
	}
	return c
}

func TestAnswersThatAreNeverTakenOver(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(a *answers)
		want   Reason
		detail string
	}{
		{"no brokers, as a starting broker says (BL-09)", func(a *answers) { a.meta.Brokers, a.meta.Topics = nil, nil }, NoBrokers, ""},
		{"no brokers, but topics (librdkafka #5301)", func(a *answers) { a.meta.Brokers = nil }, NoBrokers, "2 topics"},
		{"no brokers in DescribeCluster", func(a *answers) { a.desc.Brokers = nil }, NoBrokers, ""},
		{"another cluster", func(a *answers) { a.meta.ClusterID = kmsg.StringPtr("B") }, WrongCluster, `"B", the pool's is "A"`},
		{"no cluster id", func(a *answers) { a.meta.ClusterID = nil }, WrongCluster, ""},
		{"another cluster in DescribeCluster", func(a *answers) { a.desc.ClusterID = "B" }, WrongCluster, `"B"`},
		{"wildcard", func(a *answers) { a.meta.Brokers[1].Host = "0.0.0.0" }, BadAddress, "node id 1"},
		{"IPv6 wildcard", func(a *answers) { a.meta.Brokers[1].Host = "::" }, BadAddress, ""},
		{"long IPv6 wildcard", func(a *answers) { a.meta.Brokers[1].Host = "0:0:0:0:0:0:0:0" }, BadAddress, ""},
		{"brackets", func(a *answers) { a.meta.Brokers[1].Host = "[::1]" }, BadAddress, ""},
		{"no host", func(a *answers) { a.meta.Brokers[1].Host = "" }, BadAddress, ""},
		{"port 0", func(a *answers) { a.meta.Brokers[1].Port = 0 }, BadAddress, "port 0"},
		{"port 65536", func(a *answers) { a.meta.Brokers[1].Port = 65536 }, BadAddress, ""},
		{"bad address in DescribeCluster", func(a *answers) { a.desc.Brokers[2].Port = -1 }, BadAddress, "node id 2"},
		{"the VIP itself", func(a *answers) { a.meta.Brokers[1].Host = "vip" }, VIPAddress, "vip:9092"},
		{"the VIP itself in DescribeCluster", func(a *answers) { a.desc.Brokers[1].Host = "vip" }, VIPAddress, ""},
		{"two node ids on one address", func(a *answers) { a.meta.Brokers[1].Host = "B0" }, SharedAddress, "node ids 0 and 1"},
		{"controllers", func(a *answers) { a.desc.EndpointType = 2 }, Controller, ""},
		{"top-level error", func(a *answers) { a.meta.Version, a.meta.ErrorCode = 13, 129 }, ErrorCode, "REBOOTSTRAP_REQUIRED"},
		{"error in DescribeCluster", func(a *answers) { a.desc.ErrorCode = 31 }, ErrorCode, "CLUSTER_AUTHORIZATION_FAILED"},
		{"a node id twice", func(a *answers) { a.meta.Brokers[1].NodeID = 0 }, Malformed, ""},
		{"a node id twice in DescribeCluster", func(a *answers) { a.desc.Brokers[1].NodeID = 0 }, Malformed, ""},
		{"a topic twice", func(a *answers) { a.topic("orders", 'x', 1) }, Malformed, `"orders"`},
		{"a topic without a name", func(a *answers) { a.of("audit").Topic = nil }, Malformed, ""},
		{"a partition twice", func(a *answers) { a.of("orders").Partitions[1].Partition = 0 }, Malformed, "partition 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := sound()
			c.spoil(a)
			_, fault := a.readBy(new(Reader), true, nil)
			if fault == nil {
				t.Fatalf("it is taken over, want %s", c.want)
			}
			if fault.Reason != c.want || !strings.Contains(fault.Detail, c.detail) {
				t.Errorf("got %v, want %s with %q", fault, c.want, c.detail)
			}
		})
	}
}

func TestDoubts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(a *answers)
		want   []Doubt
	}{
		{"nothing new", func(*answers) {}, nil},
		{"another controller", func(a *answers) { a.meta.ControllerID = 2 }, nil},
		{"a new broker", func(a *answers) { a.meta.Brokers[2].NodeID = 3; a.addBroker(2) }, nil},
		{"a new topic", func(a *answers) { a.topic("new", 'n', 1) }, nil},
		{"more partitions", func(a *answers) { a.topic("audit2", 'x', 2); a.grow("audit") }, nil},
		{"a new leader", func(a *answers) { p := &a.of("orders").Partitions[1]; p.Leader, p.LeaderEpoch = 2, 6 }, nil},
		{"no leader", func(a *answers) {
			p := &a.of("orders").Partitions[1]
			p.Leader, p.LeaderEpoch, p.ErrorCode = -1, 6, 5
		}, nil},
		{"an unknown epoch, as before Metadata v7", func(a *answers) { a.of("orders").Partitions[1].LeaderEpoch = -1 }, nil},
		{"a topic with an error that was not listed", func(a *answers) { a.topic("bad", 'b', 0); a.of("bad").ErrorCode = 3 }, nil},
		{"a broker less", func(a *answers) { a.meta.Brokers = a.meta.Brokers[:2] }, []Doubt{{Shrunk, "", 2}}},
		{"another port", func(a *answers) { a.meta.Brokers[2].Port = 9093 }, []Doubt{{Moved, "", 2}}},
		{"a lower epoch", func(a *answers) { a.of("orders").Partitions[1].LeaderEpoch = 4 }, []Doubt{{LowerEpoch, "orders", 1}}},
		{"a topic gone", func(a *answers) { a.without("audit") }, []Doubt{{TopicGone, "audit", -1}}},
		{"a topic recreated, with epochs from 0", func(a *answers) {
			a.of("orders").TopicID = [16]byte{'p'}
			a.of("orders").Partitions[0].LeaderEpoch = 0
		}, []Doubt{{TopicRecreated, "orders", -1}}},
		{"no ids any more (an older broker answers)", func(a *answers) { a.of("orders").TopicID = [16]byte{} }, nil},
		{"a topic with an id that is over", func(a *answers) { a.of("orders").TopicID = [16]byte{'r'} }, []Doubt{{TopicIDBack, "orders", -1}}},
		{"a deleted topic is back", func(a *answers) { a.topic("deleted", 'r', 1) }, []Doubt{{TopicIDBack, "deleted", -1}}},
		{"partitions missing", func(a *answers) { a.of("orders").Partitions = a.of("orders").Partitions[:1] }, []Doubt{{HalfBuilt, "orders", -1}}},
		{"an error where there was none", func(a *answers) { a.of("audit").ErrorCode = 5 }, []Doubt{{HalfBuilt, "audit", -1}}},
		{"no partitions where there were some", func(a *answers) { a.of("audit").Partitions = nil }, []Doubt{{HalfBuilt, "audit", -1}}},
		{"the gravest first", func(a *answers) {
			a.without("audit")
			a.of("orders").Partitions[2].LeaderEpoch = 1
			a.meta.Brokers = a.meta.Brokers[1:]
		}, []Doubt{{Shrunk, "", 0}, {LowerEpoch, "orders", 2}, {TopicGone, "audit", -1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var retired Retired
			before := sound()
			before.topic("retired", 'r', 1)
			cur := sound().read(t).Snapshot
			retired.Replace(before.read(t).Snapshot, cur)

			a := sound()
			c.change(a)
			if diff := cmp.Diff(c.want, Doubts(cur, a.read(t), &retired)); diff != "" {
				t.Errorf("doubts (-want +got):\n%s", diff)
			}
			a = sound()
			c.change(a)
			if got := Doubts(nil, a.read(t), &retired); got != nil {
				t.Errorf("without a view there is nothing to doubt by, got %v", got)
			}
		})
	}
}

func (a *answers) addBroker(id int32) {
	a.meta.Brokers = append(a.meta.Brokers, kmsg.MetadataResponseBroker{NodeID: id, Host: fmt.Sprintf("b%d", id), Port: 9095})
	a.meta.Brokers[2].Port, a.meta.Brokers[3].Port = 9095, 9092
}

func (a *answers) grow(name string) {
	t := a.of(name)
	t.Partitions = append(t.Partitions, kmsg.MetadataResponseTopicPartition{Partition: int32(len(t.Partitions))})
}

// A topic that a broker lists with an error is left to be asked for at a broker; the others are served.
func TestTopicsWithErrorsAreLeftOut(t *testing.T) {
	a := sound()
	a.topic("bad", 'b', 1)
	a.of("bad").ErrorCode = 17
	a.topic("empty", 'e', 0)
	c := a.read(t)
	if diff := cmp.Diff([]string{"bad", "empty"}, c.Errored); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	for name, want := range map[string]bool{"bad": false, "empty": false, "orders": true, "audit": true} {
		if got := c.Snapshot.Topic(name) != nil; got != want {
			t.Errorf("topic %s in the snapshot: %v, want %v", name, got, want)
		}
	}
}

func TestTheControllerIsAlwaysListed(t *testing.T) {
	prev := sound().read(t).Snapshot // its controller is 1
	for _, c := range []struct {
		said   int32
		listed []int32
		want   int32
	}{{2, []int32{0, 1, 2}, 2}, {-1, []int32{0, 1, 2}, 1}, {-1, []int32{2}, 2}, {7, []int32{0, 2}, 0}} {
		a := sound()
		a.meta.ControllerID, a.desc = c.said, nil
		var listed []kmsg.MetadataResponseBroker
		for _, id := range c.listed {
			listed = append(listed, a.meta.Brokers[id])
		}
		a.meta.Brokers = listed
		got, fault := a.readBy(new(Reader), false, prev)
		if fault != nil {
			t.Fatal(fault)
		}
		if got.Snapshot.ControllerID != c.want {
			t.Errorf("the broker says %d and lists %v: controller %d, want %d", c.said, c.listed, got.Snapshot.ControllerID, c.want)
		}
	}
}

func TestSame(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(a *answers)
		kraft  bool
		want   bool
	}{
		{"order of everything", func(a *answers) {
			a.meta.Brokers[0], a.meta.Brokers[2] = a.meta.Brokers[2], a.meta.Brokers[0]
			a.desc.Brokers[0], a.desc.Brokers[2] = a.desc.Brokers[2], a.desc.Brokers[0]
			a.meta.Topics[0], a.meta.Topics[1] = a.meta.Topics[1], a.meta.Topics[0]
			ps := a.of("orders").Partitions
			ps[0], ps[2] = ps[2], ps[0]
			ps[1].ISR = []int32{2, 0, 1}
		}, true, true},
		{"KRaft's random controller", func(a *answers) { a.meta.ControllerID = 0 }, true, true},
		{"ZooKeeper's controller", func(a *answers) { a.meta.ControllerID = 0 }, false, false},
		{"rack", func(a *answers) { a.meta.Brokers[0].Rack = kmsg.StringPtr("r1") }, true, false},
		{"fenced", func(a *answers) { a.desc.Brokers[0].IsFenced = true }, true, false},
		{"no DescribeCluster", func(a *answers) { a.desc = nil }, true, false},
		{"leader", func(a *answers) { a.of("orders").Partitions[0].Leader = 1 }, true, false},
		{"order of replicas", func(a *answers) { a.of("orders").Partitions[0].Replicas = []int32{1, 0, 2} }, true, false},
		{"smaller ISR", func(a *answers) { a.of("orders").Partitions[0].ISR = []int32{0, 1} }, true, false},
		{"offline replica", func(a *answers) { a.of("orders").Partitions[0].OfflineReplicas = []int32{2} }, true, false},
		{"partition error", func(a *answers) { a.of("orders").Partitions[0].ErrorCode = 5 }, true, false},
		{"internal", func(a *answers) { a.of("orders").IsInternal = true }, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := sound(), sound()
			c.change(y)
			a, _ := x.readBy(new(Reader), c.kraft, nil)
			b, fault := y.readBy(new(Reader), c.kraft, nil)
			if fault != nil {
				t.Fatal(fault)
			}
			if got := Same(a.Snapshot, b.Snapshot); got != c.want {
				t.Errorf("Same is %v, want %v", got, c.want)
			}
		})
	}
}

func TestRetiredIsBounded(t *testing.T) {
	var r Retired
	for i := range maxRetired + 100 {
		r.add([16]byte{byte(i), byte(i >> 8), 1})
	}
	if len(r.ids) != maxRetired || len(r.ring) != maxRetired {
		t.Errorf("%d ids, %d in the ring, want %d", len(r.ids), len(r.ring), maxRetired)
	}
	if r.Has([16]byte{0, 0, 1}) || !r.Has([16]byte{100, 0, 1}) {
		t.Error("it is not the oldest that are forgotten")
	}
}
