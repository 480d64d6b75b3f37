package stub

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kvip/kvip/loadtest/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	c, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func all(t *testing.T, addr string, topics ...kmsg.MetadataRequestTopic) *kmsg.MetadataResponse {
	t.Helper()
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.Topics = 12, topics
	resp, err := lab.Exchange(t.Context(), addr, q)
	if err != nil {
		t.Fatal(err)
	}
	return resp.(*kmsg.MetadataResponse)
}

func TestBrokersLearnOfChangesOneAfterAnother(t *testing.T) {
	c := start(t, Config{Brokers: 5, Listening: 3, Topics: 40, Partitions: 5, Lag: 100 * time.Millisecond})
	before := all(t, c.Addrs()[0])
	if len(before.Brokers) != 5 || len(before.Topics) != 40 || len(*before.Topics[7].Topic) != 35 {
		t.Fatalf("%d brokers, %d topics, name %q", len(before.Brokers), len(before.Topics), *before.Topics[7].Topic)
	}
	raised := func(m *kmsg.MetadataResponse) (n int) {
		for i, topic := range m.Topics {
			for j, p := range topic.Partitions {
				n += int(p.LeaderEpoch - before.Topics[i].Partitions[j].LeaderEpoch)
			}
		}
		return n
	}
	if n := c.Bump(0.01); n != 2 || raised(all(t, c.Addrs()[0])) != 2 || raised(all(t, c.Addrs()[2])) != 0 {
		t.Errorf("%d of 200 partitions changed; the last broker must not know yet", n)
	}
	c.Elect()
	for deadline := time.Now().Add(5 * time.Second); raised(all(t, c.Addrs()[2])) != 202; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the last broker never learns")
		}
	}
	if asked := c.Asked.All.Load(); asked < 4 || c.Asked.Named.Load() != 0 {
		t.Errorf("%d requests for all topics were counted", asked)
	}
}

func TestALostBrokerLeadsNothing(t *testing.T) {
	c := start(t, Config{Brokers: 4, Topics: 10, Partitions: 4})
	c.Lose(0)
	m := all(t, c.Addrs()[1])
	if len(m.Brokers) != 3 || m.ControllerID == 1 {
		t.Errorf("brokers %v, controller %d", m.Brokers, m.ControllerID)
	}
	for _, topic := range m.Topics {
		for _, p := range topic.Partitions {
			if was := len(p.OfflineReplicas) > 0; p.Leader == 1 || was && (p.OfflineReplicas[0] != 1 || len(p.ISR) != 2) {
				t.Errorf("%s: %+v", *topic.Topic, p)
			}
		}
	}
	if _, err := lab.Exchange(t.Context(), c.Addrs()[0], kmsg.NewPtrApiVersionsRequest()); err == nil {
		t.Error("the lost broker answers")
	}
	one := all(t, c.Addrs()[1], kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr("ghost")}, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(TopicName(3))})
	if len(one.Topics) != 2 || one.Topics[0].ErrorCode != 3 || len(one.Topics[1].Partitions) != 4 {
		t.Errorf("%+v", one.Topics)
	}
}
