package snapshot

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// SameTopic says whether a and b are one topic of two snapshots that Reuse has made share it: whether they have the same
// name and the very same partitions. It does not look into them.
func SameTopic(a, b *kmsg.MetadataResponseTopic) bool {
	return a.Topic == b.Topic && len(a.Partitions) == len(b.Partitions) &&
		(len(a.Partitions) == 0 || &a.Partitions[0] == &b.Partitions[0])
}

// Reuse makes next, which nobody else has seen yet, share with prev every topic that is the same in both, so that what was
// made of it (its encodings) can be kept. Both have their topics ascending by name. It returns how many are not shared.
func Reuse(next, prev *Snapshot) (changed int) {
	j := 0
	for i := range next.Topics {
		t := &next.Topics[i]
		for j < len(prev.Topics) && *prev.Topics[j].Topic < *t.Topic {
			j++
		}
		if j < len(prev.Topics) && sameContent(t, &prev.Topics[j]) {
			*t = prev.Topics[j]
		} else {
			changed++
		}
	}
	return changed
}

func sameContent(a, b *kmsg.MetadataResponseTopic) bool {
	if SameTopic(a, b) {
		return true
	}
	return *a.Topic == *b.Topic && a.TopicID == b.TopicID && a.ErrorCode == b.ErrorCode && a.IsInternal == b.IsInternal &&
		slices.EqualFunc(a.Partitions, b.Partitions, func(p, q kmsg.MetadataResponseTopicPartition) bool {
			return p.Partition == q.Partition && p.ErrorCode == q.ErrorCode && p.Leader == q.Leader && p.LeaderEpoch == q.LeaderEpoch &&
				slices.Equal(p.Replicas, q.Replicas) && slices.Equal(p.ISR, q.ISR) && slices.Equal(p.OfflineReplicas, q.OfflineReplicas)
		})
}
