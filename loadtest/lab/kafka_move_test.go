package lab

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// replicas and leaders of a topic, by partition.
func assignment(t *testing.T, k *Kafka, topic string) (replicas [][]int32, leaders []int32) {
	t.Helper()
	m, err := metadata(t.Context(), k.Node(0).internal, topic)
	if err != nil {
		t.Fatal(err)
	}
	parts := m.Topics[0].Partitions
	replicas, leaders = make([][]int32, len(parts)), make([]int32, len(parts))
	for _, p := range parts {
		replicas[p.Partition], leaders[p.Partition] = p.Replicas, p.Leader
	}
	return replicas, leaders
}

func TestEveryPartitionMovesOnAndItsPreferredLeaderLeads(t *testing.T) {
	ctx := t.Context()
	k := startKafkaT(t, StartKafka, KafkaConfig{})
	if err := k.CreateTopic(ctx, "orders", 6, 2); err != nil {
		t.Fatal(err)
	}
	before, _ := assignment(t, k, "orders")
	if err := k.ReassignAll(ctx); err != nil {
		t.Fatal(err)
	}
	if err := k.ElectPreferredLeaders(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // a broker hears of it a moment later
		after, leaders := assignment(t, k, "orders")
		for p := range before {
			for i, r := range before[p] {
				if want := r%3 + 1; after[p][i] != want {
					return fmt.Errorf("partition %d: replicas %v after %v, want each one further", p, after[p], before[p])
				}
			}
			if leaders[p] != after[p][0] {
				return fmt.Errorf("partition %d is led by %d of %v", p, leaders[p], after[p])
			}
		}
		return nil
	})
}

func TestReplicasOfABrokerThatIsDownMoveToOneThatRuns(t *testing.T) {
	m := kmsg.NewPtrMetadataResponse()
	topic := kmsg.NewMetadataResponseTopic()
	topic.Topic = kmsg.StringPtr("orders")
	for _, replicas := range [][]int32{{1, 2, 3}, {3, 1, 2}, {2, 3}} {
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Replicas = replicas
		topic.Partitions = append(topic.Partitions, p)
	}
	m.Topics = append(m.Topics, topic)
	for i, want := range [][]int32{{3, 1}, {1, 3}, {3, 1}} { // 2 is down
		got := moved(m, []int32{1, 3})[0].Partitions[i].Replicas
		if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("%v moves to %v, want %v", topic.Partitions[i].Replicas, got, want)
		}
	}
}
