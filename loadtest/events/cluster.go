package events

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
)

// electLeaders makes every partition's preferred replica its leader (KIP-460), as after a rolling restart.
func electLeaders(ctx context.Context, addr string) (string, error) {
	req := kmsg.NewPtrElectLeadersRequest()
	req.SetVersion(2)
	req.TimeoutMillis = 20_000
	req.Topics = nil // every partition
	resp, err := lab.Exchange(ctx, addr, req)
	if err != nil {
		return "", err
	}
	r := resp.(*kmsg.ElectLeadersResponse)
	if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
		return "", err
	}
	elected, not := 0, 0
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			switch err := kerr.ErrorForCode(p.ErrorCode); {
			case err == nil:
				elected++
			case errors.Is(err, kerr.ElectionNotNeeded):
				not++
			default:
				return "", fmt.Errorf("topic %s partition %d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return fmt.Sprintf("%d leaders elected, %d were the preferred ones", elected, not), nil
}

// reassignAll moves each replica of every partition to the next broker (KIP-455): the data moves where there are more
// brokers than replicas, and every preferred leader changes.
func reassignAll(ctx context.Context, addr string) (string, error) {
	ask := kmsg.NewPtrMetadataRequest()
	ask.SetVersion(7)
	resp, err := lab.Exchange(ctx, addr, ask)
	if err != nil {
		return "", err
	}
	m := resp.(*kmsg.MetadataResponse)
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.SetVersion(0)
	req.TimeoutMillis = 20_000
	partitions := 0
	var brokers []int32
	for _, b := range m.Brokers {
		brokers = append(brokers, b.NodeID)
	}
	slices.Sort(brokers)
	for _, t := range m.Topics {
		topic := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		topic.Topic = *t.Topic // never null before v12
		for _, p := range t.Partitions {
			one := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
			one.Partition = p.Partition
			for _, r := range p.Replicas {
				i, known := slices.BinarySearch(brokers, r)
				if !known {
					return "", fmt.Errorf("topic %s partition %d has a replica on broker %d, which is down: reassign once it is back", topic.Topic, p.Partition, r)
				}
				one.Replicas = append(one.Replicas, brokers[(i+1)%len(brokers)])
			}
			topic.Partitions = append(topic.Partitions, one)
			partitions++
		}
		req.Topics = append(req.Topics, topic)
	}
	if partitions == 0 {
		return "", fmt.Errorf("%s lists no partition", addr)
	}
	resp, err = lab.Exchange(ctx, addr, req)
	if err != nil {
		return "", err
	}
	r := resp.(*kmsg.AlterPartitionAssignmentsResponse)
	if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
		return "", err
	}
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return "", fmt.Errorf("topic %s partition %d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return fmt.Sprintf("%d partitions begin to move over %d brokers", partitions, len(brokers)), nil
}
