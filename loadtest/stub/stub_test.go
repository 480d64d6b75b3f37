package stub

import (
	"slices"
	"sync"
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

func ids(m *kmsg.MetadataResponse) (ids []int32) {
	for _, b := range m.Brokers {
		ids = append(ids, b.NodeID)
	}
	return ids
}

func TestBrokersJoinDieAndComeBack(t *testing.T) {
	c := start(t, Config{Brokers: 6, Joined: 3, Topics: 4, Partitions: 3, Racks: []string{"a", "b", "c"}})
	addrs := c.Addrs()
	if m := all(t, addrs[5]); !slices.Equal(ids(m), []int32{1, 2, 3}) || *m.Brokers[1].Rack != "b" {
		t.Errorf("three of six have joined; the list is %+v", m.Brokers)
	}
	c.List(0, 1, 2, 3, 4, 5)
	if m := all(t, addrs[0]); len(m.Brokers) != 6 || len(m.Topics[0].Partitions[0].OfflineReplicas) != 0 {
		t.Errorf("all have joined; the list is %v", ids(m))
	}
	c.Kill(0, 3)
	if _, err := lab.Exchange(t.Context(), addrs[3], kmsg.NewPtrApiVersionsRequest()); err == nil {
		t.Error("a killed broker answers")
	}
	c.List(1, 2, 4, 5)
	m := all(t, addrs[1])
	for _, topic := range m.Topics {
		for _, p := range topic.Partitions {
			if p.Leader == 1 || !slices.Equal(p.OfflineReplicas, []int32{1}) || len(p.ISR) != 2 {
				t.Errorf("broker 1 is dead: %+v", p)
			}
		}
	}
	if err := c.Restart(0, 3); err != nil {
		t.Fatal(err)
	}
	c.List(0, 1, 2, 3, 4, 5)
	if m := all(t, addrs[3]); len(m.Brokers) != 6 || len(m.Topics[0].Partitions[0].ISR) != 3 {
		t.Errorf("all are back: %v, %+v", ids(m), m.Topics[0].Partitions[0])
	}
}

func TestAFrozenBrokerAnswersWhenItThaws(t *testing.T) {
	c := start(t, Config{Brokers: 3, Topics: 1, Partitions: 1})
	c.Freeze(0)
	answered := make(chan error, 1)
	go func() {
		_, err := lab.Exchange(t.Context(), c.Addrs()[0], kmsg.NewPtrApiVersionsRequest())
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Errorf("a frozen broker answers: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	c.Thaw(0)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestABrokerServesSoManyASecondAndTheRestWaits(t *testing.T) {
	c := start(t, Config{Brokers: 3, Topics: 1, Partitions: 1, Capacity: []float64{50, 0}})
	one := kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(TopicName(0))}
	begun := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { all(t, c.Addrs()[0], one) })
	}
	wg.Wait()
	took := time.Since(begun)
	if took < 400*time.Millisecond || took > 2*time.Second || c.Served()[0] != 20 {
		t.Errorf("20 requests at 50 a second took %v, %v were served", took, c.Served())
	}
	begun = time.Now()
	for range 20 {
		all(t, c.Addrs()[0])      // a gateway's
		all(t, c.Addrs()[1], one) // has no limit
	}
	if took := time.Since(begun); took > 300*time.Millisecond {
		t.Errorf("what has no limit took %v", took)
	}
}
