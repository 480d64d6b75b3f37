package snapshot

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Same says whether two views tell clients the same. Generations do not count, nor does the controller id of a KRaft
// cluster, which is another broker's in each answer (clients.md R16), nor the order in which in-sync and offline replicas
// are listed.
func Same(a, b *Snapshot) bool {
	return a.ClusterID == b.ClusterID && a.KRaft == b.KRaft && a.HasTopicIDs == b.HasTopicIDs &&
		(a.KRaft || a.ControllerID == b.ControllerID) &&
		slices.EqualFunc(a.Brokers, b.Brokers, func(a, b kmsg.MetadataResponseBroker) bool {
			return a.NodeID == b.NodeID && a.Host == b.Host && a.Port == b.Port && sameString(a.Rack, b.Rack)
		}) &&
		(a.Described == nil) == (b.Described == nil) &&
		slices.EqualFunc(a.Described, b.Described, func(a, b kmsg.DescribeClusterResponseBroker) bool {
			return a.NodeID == b.NodeID && a.Host == b.Host && a.Port == b.Port && sameString(a.Rack, b.Rack) &&
				a.IsFenced == b.IsFenced
		}) &&
		slices.EqualFunc(a.Topics, b.Topics, sameTopic)
}

func sameTopic(a, b kmsg.MetadataResponseTopic) bool {
	return *a.Topic == *b.Topic && a.TopicID == b.TopicID && a.IsInternal == b.IsInternal &&
		slices.EqualFunc(a.Partitions, b.Partitions, samePartition)
}

func samePartition(a, b kmsg.MetadataResponseTopicPartition) bool {
	return a.Partition == b.Partition && a.ErrorCode == b.ErrorCode && a.Leader == b.Leader &&
		a.LeaderEpoch == b.LeaderEpoch && slices.Equal(a.Replicas, b.Replicas) && sameSet(a.ISR, b.ISR) &&
		sameSet(a.OfflineReplicas, b.OfflineReplicas)
}

func sameString(a, b *string) bool { return deref(a) == deref(b) && (a == nil) == (b == nil) }

// sameSet compares lists of node ids that name none twice.
func sameSet(a, b []int32) bool {
	if slices.Equal(a, b) {
		return true
	}
	if len(a) != len(b) {
		return false
	}
	for _, id := range a {
		if !slices.Contains(b, id) {
			return false
		}
	}
	return true
}
