package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ElectPreferredLeaders gives every partition back to the first of its replicas, all at once, as
// kafka-leader-election.sh --all-topic-partitions does. KRaft only.
func (k *Kafka) ElectPreferredLeaders(ctx context.Context) error {
	req := kmsg.NewPtrElectLeadersRequest() // of no topic: all of them
	req.SetVersion(2)
	req.TimeoutMillis = 10_000
	return k.askAny(ctx, "elect preferred leaders", req, func(resp kmsg.Response) error {
		m := resp.(*kmsg.ElectLeadersResponse)
		if err := kerr.ErrorForCode(m.ErrorCode); err != nil {
			return err
		}
		var errs []error
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil && !errors.Is(err, kerr.ElectionNotNeeded) {
					errs = append(errs, fmt.Errorf("topic %s partition %d: %w", t.Topic, p.Partition, err))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// ReassignAll moves every replica of every topic, all at once, to the broker that comes next by id among the running ones,
// and returns when nothing moves any more. Where each of them has a replica of everything, only the preferred leaders
// change. KRaft only.
func (k *Kafka) ReassignAll(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var ids []int32
	for _, n := range k.running() {
		ids = append(ids, n.ID)
	}
	if len(ids) == 0 {
		return fmt.Errorf("lab: reassign partitions: %w", errNoneRunning)
	}
	slices.Sort(ids)
	all := kmsg.NewPtrMetadataRequest()
	all.SetVersion(5)
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.TimeoutMillis = 10_000
	if err := k.askAny(ctx, "read assignments", all, func(resp kmsg.Response) error {
		req.Topics = moved(resp.(*kmsg.MetadataResponse), ids)
		return nil
	}); err != nil || len(req.Topics) == 0 {
		return err
	}
	if err := k.askAny(ctx, "reassign partitions", req, func(resp kmsg.Response) error {
		m := resp.(*kmsg.AlterPartitionAssignmentsResponse)
		errs := []error{kerr.ErrorForCode(m.ErrorCode)}
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					errs = append(errs, fmt.Errorf("topic %s partition %d: %w", t.Topic, p.Partition, err))
				}
			}
		}
		return errors.Join(errs...)
	}); err != nil {
		return err
	}
	list := kmsg.NewPtrListPartitionReassignmentsRequest()
	list.TimeoutMillis = 10_000
	return k.askAny(ctx, "wait for reassignments", list, func(resp kmsg.Response) error {
		m := resp.(*kmsg.ListPartitionReassignmentsResponse)
		if err := kerr.ErrorForCode(m.ErrorCode); err != nil {
			return err
		}
		if len(m.Topics) > 0 {
			return fmt.Errorf("%w: partitions of %d topics are still moving", errAgain, len(m.Topics))
		}
		return nil
	})
}

// moved are the assignments with every replica one broker further.
func moved(m *kmsg.MetadataResponse, ids []int32) []kmsg.AlterPartitionAssignmentsRequestTopic {
	var topics []kmsg.AlterPartitionAssignmentsRequestTopic
	for _, t := range m.Topics {
		topic := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		topic.Topic = *t.Topic
		for _, p := range t.Partitions {
			part := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
			part.Partition = p.Partition
			for _, r := range p.Replicas {
				// A replica on a broker that is down goes to one that runs, too; no broker is taken twice.
				at, _ := slices.BinarySearch(ids, r+1)
				for slices.Contains(part.Replicas, ids[at%len(ids)]) && len(part.Replicas) < len(ids) {
					at++
				}
				if len(part.Replicas) < len(ids) {
					part.Replicas = append(part.Replicas, ids[at%len(ids)])
				}
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		topics = append(topics, topic)
	}
	return topics
}

// errAgain asks to be asked again.
var errAgain = errors.New("not yet")

// askAny sends a request to a running node, again while it cannot be reached or says that it should be tried again, until
// judge is content.
func (k *Kafka) askAny(ctx context.Context, what string, req kmsg.Request, judge func(kmsg.Response) error) error {
	if k.zk != nil {
		return fmt.Errorf("lab: %s: for KRaft only, and this cluster is on ZooKeeper", what)
	}
	return k.poll(ctx, what, func() error {
		running := k.running()
		if len(running) == 0 {
			return errNoneRunning
		}
		resp, err := Exchange(ctx, running[0].internal, req)
		if err != nil {
			return err
		}
		err = judge(resp)
		if err != nil && !kerr.IsRetriable(err) && !errors.Is(err, errAgain) {
			return permanent{err}
		}
		return err
	})
}
