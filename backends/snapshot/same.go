package snapshot

import (
	"bytes"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Same says whether two views tell clients the same. Generations do not count, nor does the controller id of a KRaft
// cluster, which is another broker's in each answer (clients.md R16), nor the order in which in-sync and offline replicas
// are listed.
func Same(a, b *Snapshot) bool {
	return a == b || sameButTopics(a, b) && len(a.Topics) == len(b.Topics) && sameTopics(a, b)
}

func sameButTopics(a, b *Snapshot) bool {
	return a.ClusterID == b.ClusterID && a.KRaft == b.KRaft && a.HasTopicIDs == b.HasTopicIDs &&
		(a.KRaft || a.ControllerID == b.ControllerID) &&
		(Shared(a.Brokers, b.Brokers) || slices.EqualFunc(a.Brokers, b.Brokers, func(a, b kmsg.MetadataResponseBroker) bool {
			return a.NodeID == b.NodeID && a.Host == b.Host && a.Port == b.Port && sameString(a.Rack, b.Rack)
		})) &&
		(a.Described == nil) == (b.Described == nil) &&
		(Shared(a.Described, b.Described) || slices.EqualFunc(a.Described, b.Described, func(a, b kmsg.DescribeClusterResponseBroker) bool {
			return a.NodeID == b.NodeID && a.Host == b.Host && a.Port == b.Port && sameString(a.Rack, b.Rack) &&
				a.IsFenced == b.IsFenced
		}))
}

// Shared says whether two slices are one, not only alike.
func Shared[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// sameTopics compares as many topics.
func sameTopics(a, b *Snapshot) bool {
	for n := range a.Pages {
		if a.Pages[n].Same(&b.Pages[n]) {
			continue
		}
		for i := n * PageTopics; i < min((n+1)*PageTopics, len(a.Topics)); i++ {
			if !sameTopic(&a.Topics[i], &b.Topics[i]) {
				return false
			}
		}
	}
	return true
}

func sameTopic(a, b *Topic) bool {
	if bytes.Equal(a.raw, b.raw) {
		return true
	}
	if a.Name != b.Name || a.ID != b.ID || a.Partitions != b.Partitions {
		return false
	}
	h, x := a.cursor()
	g, y := b.cursor()
	if h.internal != g.internal {
		return false
	}
	for x.next() && y.next() {
		p, q := &x.p, &y.p
		if p.Index != q.Index || p.ErrorCode != q.ErrorCode || p.Leader != q.Leader || p.LeaderEpoch != q.LeaderEpoch ||
			!bytes.Equal(p.Replicas, q.Replicas) || !p.ISR.sameSet(q.ISR) || !p.Offline.sameSet(q.Offline) {
			return false
		}
	}
	return true
}

func sameString(a, b *string) bool { return deref(a) == deref(b) && (a == nil) == (b == nil) }
