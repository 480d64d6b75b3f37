package check

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/failure"
)

// view is the answer of a cluster whose one partition is at an epoch.
func view(t *testing.T, k *Checker, cluster string, epoch int32) *View {
	t.Helper()
	m := kmsg.NewPtrMetadataResponse()
	m.Version, m.ClusterID = 9, kmsg.StringPtr(cluster)
	b := kmsg.NewMetadataResponseBroker()
	b.NodeID, b.Host, b.Port = 1, "127.0.0.1", 9092
	m.Brokers = append(m.Brokers, b)
	topic := kmsg.NewMetadataResponseTopic()
	topic.Topic = kmsg.StringPtr("orders")
	p := kmsg.NewMetadataResponseTopicPartition()
	p.Leader, p.LeaderEpoch = 1, epoch
	topic.Partitions = append(topic.Partitions, p)
	m.Topics = append(m.Topics, topic)
	v := k.Metadata(9, 1, m.AppendTo(nil))
	if v.Fault != failure.None {
		t.Fatal(v.Fault, v.Detail)
	}
	return v
}

// TestEpochsGoBackAcrossConnectionsOnlyForWhoAskedLater: an answer that was under way when another client was told of a
// newer epoch may be older; one that was asked for afterwards may not, but for the grace.
func TestEpochsGoBackAcrossConnectionsOnlyForWhoAskedLater(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		grace      time.Duration
		asked, got time.Duration
		cluster    string
		epoch      int32
		want       failure.Class
	}{
		"asked before":       {0, 90 * ms, 120 * ms, "a", 6, failure.None},
		"asked after":        {0, 110 * ms, 120 * ms, "a", 6, failure.EpochBack},
		"within the grace":   {50 * ms, 110 * ms, 120 * ms, "a", 6, failure.None},
		"after the grace":    {50 * ms, 160 * ms, 170 * ms, "a", 6, failure.EpochBack},
		"the same":           {0, 110 * ms, 120 * ms, "a", 7, failure.None},
		"newer":              {0, 110 * ms, 120 * ms, "a", 8, failure.None},
		"of another cluster": {0, 110 * ms, 120 * ms, "b", 6, failure.None},
	} {
		k := New(Expect{EpochGrace: c.grace})
		k.Across(view(t, k, "a", 7), 50*ms, 100*ms)
		if got, detail := k.Across(view(t, k, c.cluster, c.epoch), c.asked, c.got); got != c.want {
			t.Errorf("%s: %s %q, want %s", name, got, detail, c.want)
		}
	}
	k := New(Expect{})
	k.Across(view(t, k, "a", 7), 0, 1*ms)
	for i := range time.Duration(2) { // what went back is not the newest from then on
		if got, _ := k.Across(view(t, k, "a", 6), (10+i)*ms, (11+i)*ms); got != failure.EpochBack {
			t.Errorf("the answer after one that went back: %s", got)
		}
	}
}

func TestAClientHoldsItsClusterPerConnectionAndItsEpochsForGood(t *testing.T) {
	k := New(Expect{})
	var m Memory
	accept := func(v *View, want failure.Class) {
		t.Helper()
		if got, detail := k.Accept(&m, v); got != want {
			t.Errorf("%s %q, want %s", got, detail, want)
		}
	}
	accept(view(t, k, "a", 7), failure.None)
	accept(view(t, k, "b", 7), failure.WrongCluster)
	accept(view(t, k, "a", 6), failure.EpochBack)
	m.NewConnection()
	accept(view(t, k, "a", 6), failure.EpochBack)
	m.NewConnection()
	accept(view(t, k, "b", 1), failure.None)
}
