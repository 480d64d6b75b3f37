//go:build e2e

package events

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
)

// TestLeadersAreElectedAndReplicasMovedOnRealKafka moves every replica of a topic with two of them to the next of three
// brokers, and then makes the new preferred replicas leaders.
func TestLeadersAreElectedAndReplicasMovedOnRealKafka(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k, err := lab.StartKafka(ctx, lab.KafkaConfig{Nodes: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := k.CreateTopic(ctx, "moved", 6, 2); err != nil {
		t.Fatal(err)
	}
	addr := k.Node(0).Addr()
	before := replicas(ctx, t, addr)
	todo := parse(t, fmt.Sprintf("events:\n  - {at: 0s, reassign_all: %q}\n  - {at: 5s, elect_leaders: %q}\n", addr, addr))
	for _, d := range todo.Run(ctx, time.Now()) {
		if d.Err != nil || !strings.Contains(d.Detail, map[string]string{"reassign_all": "6 partitions", "elect_leaders": "elected"}[d.Event.Name]) {
			t.Errorf("%s: %q %v", d.Event.Name, d.Detail, d.Err)
		}
	}
	for {
		after, moved := replicas(ctx, t, addr), 0
		for i, p := range after {
			if p.Leader == p.Replicas[0] && p.Replicas[0] != before[i].Replicas[0] && len(p.Replicas) == 2 {
				moved++
			}
		}
		if moved == 6 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d of 6 partitions moved to a new leader", moved)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// replicas are the partitions of the topic, by index.
func replicas(ctx context.Context, t *testing.T, addr string) map[int32]kmsg.MetadataResponseTopicPartition {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(7)
	one := kmsg.NewMetadataRequestTopic()
	one.Topic = kmsg.StringPtr("moved")
	req.Topics = append(req.Topics, one)
	resp, err := lab.Exchange(ctx, addr, req)
	if err != nil {
		t.Fatal(err)
	}
	found := map[int32]kmsg.MetadataResponseTopicPartition{}
	for _, p := range resp.(*kmsg.MetadataResponse).Topics[0].Partitions {
		found[p.Partition] = p
	}
	return found
}
