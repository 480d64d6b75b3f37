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
	return topicsView(t, k, cluster, map[string]int32{"orders": epoch})
}

// topicsView is the answer about topics with a partition each, at those epochs.
func topicsView(t *testing.T, k *Checker, cluster string, epochs map[string]int32) *View {
	t.Helper()
	m := kmsg.NewPtrMetadataResponse()
	m.Version, m.ClusterID = 9, kmsg.StringPtr(cluster)
	b := kmsg.NewMetadataResponseBroker()
	b.NodeID, b.Host, b.Port = 1, "127.0.0.1", 9092
	m.Brokers = append(m.Brokers, b)
	for name, epoch := range epochs {
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr(name)
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Leader, p.LeaderEpoch = 1, epoch
		topic.Partitions = append(topic.Partitions, p)
		m.Topics = append(m.Topics, topic)
	}
	v := k.Metadata(9, len(epochs), m.AppendTo(nil))
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

// TestAnAnswerAboutLessDoesNotMakeForgetTheRest: who asks for one topic, or for the brokers alone, still knows the others.
func TestAnAnswerAboutLessDoesNotMakeForgetTheRest(t *testing.T) {
	k := New(Expect{})
	var m Memory
	all := func(orders, payments int32) *View {
		return topicsView(t, k, "a", map[string]int32{"orders": orders, "payments": payments})
	}
	for i, step := range []struct {
		view *View
		want failure.Class
	}{
		{all(5, 5), failure.None},
		{topicsView(t, k, "a", map[string]int32{"orders": 6}), failure.None},
		{topicsView(t, k, "a", nil), failure.None},
		{all(6, 4), failure.EpochBack},
		{all(5, 5), failure.EpochBack},
		{all(6, 5), failure.None},
		{all(7, 5), failure.None},
		{topicsView(t, k, "a", map[string]int32{"payments": 4}), failure.EpochBack},
	} {
		at := time.Duration(i) * time.Second
		if got, detail := k.Accept(&m, step.view); got != step.want {
			t.Errorf("step %d: a client's %s %q, want %s", i, got, detail, step.want)
		}
		if got, detail := k.Across(step.view, at, at); i > 0 && got != step.want {
			t.Errorf("step %d: across clients %s %q, want %s", i, got, detail, step.want)
		}
	}
}
