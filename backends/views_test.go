package backends

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

// The list that brokers give shrinks: not because one says so, but soon after it is so.
func TestAShorterBrokerList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		p := w.up(Config{}, three...)
		end := lie(c, 3, []int32{1}, func(req kmsg.Request) *kmsg.MetadataResponse {
			r := req.(*kmsg.MetadataRequest)
			if r.Topics != nil {
				return truth3(c, r, 0, 1, 2)
			}
			return truth3(c, r, 0, 1)
		})
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			if len(w.brokers()) != 3 {
				t.Fatal("one broker's shorter list was taken over")
			}
		}
		if n := p.Status().Rejected["shrunk"]; n == 0 {
			t.Errorf("no rejection was counted: %v", p.Status().Rejected)
		}
		end()
		if err := c.RemoveNode(2); err != nil {
			t.Fatal(err)
		}
		eventually(t, 1500*time.Millisecond, "the real removal is adopted", func() bool { return len(w.brokers()) == 2 })
	})
}

// truth3 is a Metadata answer of a cluster at three's ports that lists only those nodes, without topics.
func truth3(c *kfake.Cluster, req *kmsg.MetadataRequest, nodes ...int32) *kmsg.MetadataResponse {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	resp.ClusterID, resp.ControllerID = kmsg.StringPtr("A"), 0
	for _, n := range nodes {
		resp.Brokers = append(resp.Brokers, kmsg.MetadataResponseBroker{NodeID: n, Host: "localhost", Port: int32(three[n])})
	}
	return resp
}

// What is legitimate is followed soon, through whichever broker it is heard of.
func TestTopicsComeGoAndComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		w.up(Config{}, three...)
		topic := func(name string) *snapshot.Topic { return w.now().Snapshot().Topic(name) }
		id := topic("orders").ID
		if err := c.CreateTopic("new", 2, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Second, "the new topic is known", func() bool { return topic("new") != nil })
		if err := c.MoveTopicPartition("new", 1, 2); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Second, "the new leader is known", func() bool { return leaders(topic("new"))[1] == 2 })
		if err := c.DeleteTopic("orders"); err != nil {
			t.Fatal(err)
		}
		eventually(t, 1500*time.Millisecond, "the deleted topic is gone", func() bool { return topic("orders") == nil })
		if err := c.CreateTopic("orders", 1, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, 1500*time.Millisecond, "the recreated topic is known", func() bool {
			o := topic("orders")
			return o != nil && o.ID != id
		})
	})
}

// Field case BL-02: the table is true of each broker before clients hear of it, and widens when the last old one has left.
func TestTheOverlapFollowsARollingUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", three)
		endOld := lie(c, 18, []int32{0}, oldTable)
		w.up(Config{}, three...)
		produce := func() int16 {
			builds := w.built()
			_, hi, _ := builds[len(builds)-1].APIs.Range(0)
			return hi
		}
		if hi := produce(); hi != 7 {
			t.Fatalf("Produce up to %d with an old broker, want 7", hi)
		}
		if _, _, ok := w.built()[0].APIs.Range(60); ok {
			t.Error("key 60 is listed though a broker lacks it")
		}
		// An old broker that is down for a moment still counts.
		endDown := emptyLists(c, 0)
		eventually(t, 3*time.Second, "down", func() bool { return w.states()[addr(9092)] == "down no_brokers" })
		time.Sleep(5 * time.Second)
		if hi := produce(); hi != 7 {
			t.Errorf("Produce up to %d while the old broker is down, want 7", hi)
		}
		endOld()
		endDown()
		eventually(t, 2*time.Second, "widened after the upgrade", func() bool { return produce() > 7 })

		// A fourth, old one joins: the table shrinks no later than the view that lists it.
		lie(c, 18, []int32{3}, oldTable)
		before := len(w.built())
		w.registry.list(9092, 9093, 9094, 9095)
		time.Sleep(time.Second)
		if _, _, err := c.AddNode(3, 9095); err != nil {
			t.Fatal(err)
		}
		eventually(t, 3*time.Second, "the fourth broker is listed", func() bool { return slices.Contains(w.brokers(), 3) })
		for _, in := range w.built()[before:] {
			if _, hi, _ := in.APIs.Range(0); in.Snapshot.Broker(3) != nil && hi != 7 {
				t.Errorf("generation %d lists the old broker with Produce up to %d", in.Snapshot.Generation, hi)
			}
		}
		if err := c.RemoveNode(3); err != nil {
			t.Fatal(err)
		}
		w.registry.list(three...)
		eventually(t, 5*time.Second, "widened after it has left", func() bool { return produce() > 7 })
	})
}

func oldTable(req kmsg.Request) *kmsg.ApiVersionsResponse {
	return tableUpTo(req, 0, 7, 1, 11, 3, 8, 10, 2).(*kmsg.ApiVersionsResponse)
}

func TestEachRejectionIsCounted(t *testing.T) {
	for _, c := range []struct {
		want  snapshot.Reason
		spoil func(r *kmsg.MetadataResponse)
	}{
		{snapshot.NoBrokers, func(r *kmsg.MetadataResponse) { r.Brokers = nil }},
		{snapshot.WrongCluster, func(r *kmsg.MetadataResponse) { r.ClusterID = kmsg.StringPtr("B") }},
		{snapshot.VIPAddress, func(r *kmsg.MetadataResponse) { r.Brokers[0].Host = "kafka.example.com" }},
		{snapshot.BadAddress, func(r *kmsg.MetadataResponse) { r.Brokers[0].Host = "0.0.0.0" }},
		{snapshot.SharedAddress, func(r *kmsg.MetadataResponse) { r.Brokers[0].Port = r.Brokers[1].Port }},
		{snapshot.Moved, func(r *kmsg.MetadataResponse) { r.Brokers[0].Port = 1 }},
		{snapshot.TopicGone, func(*kmsg.MetadataResponse) {}}, // truth3 has no topics
	} {
		t.Run(string(c.want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				cl := w.cluster("A", three)
				p := w.up(Config{VIPAddresses: []string{"Kafka.example.com:9092"}}, three...)
				lie(cl, 3, []int32{1}, func(req kmsg.Request) *kmsg.MetadataResponse {
					r := req.(*kmsg.MetadataRequest)
					resp := truth3(cl, r, 0, 1, 2)
					if r.Topics == nil {
						c.spoil(resp)
					}
					return resp
				})
				time.Sleep(5 * time.Second)
				s := p.Status()
				if s.Rejected[string(c.want)] == 0 || len(s.Rejected) != 1 {
					t.Errorf("counted %v, want %s", s.Rejected, c.want)
				}
				if s.Snapshot.Generation != 1 || !s.Snapshot.Fresh {
					t.Errorf("the view has changed or is not confirmed: %+v", s.Snapshot)
				}
				n, err := gathered(w, fmt.Sprintf("kvip_snapshot_rejected_total{pool=orders,reason=%s}", c.want))
				if err != nil || n == 0 {
					t.Errorf("the metric says %v (%v)", n, err)
				}
			})
		})
	}
}
