package check

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/kvip/kvip/loadtest/kafka"
)

// fact is one thing that an answer says, in words: what it is about, and what that is.
type fact struct{ of, is string }

// changing is what is said of a thing while it moves from one broker to another: something between two answers.
const changing = "changing"

var noCoordinatorYet = []string{coordinatorError(coordinatorLoading), coordinatorError(coordinatorNotAvailable)}

// passing says that a fact is one of the moments while a group's coordinator moves.
func (f fact) passing() bool { return slices.Contains(noCoordinatorYet, f.is) }

func (f fact) String() string { return f.of + ": " + f.is }

// metadataFacts are what a Metadata answer says. Versions before 7 say leaders without epochs, which is a fact of its own.
func metadataFacts(m *kafka.Metadata, version int16, topics int) []fact {
	all := []fact{brokersFact(m.Brokers)}
	if version >= 2 {
		all = append(all, clusterFact(m.ClusterID))
	}
	if topics < 0 {
		all = append(all, topicsFact(m.Topics))
	}
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			all = append(all, leaderFact(t.Name, p))
		}
	}
	return all
}

// leadersAlone are the leaders as versions before 7 say them.
func leadersAlone(m *kafka.Metadata) (all []fact) {
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			p.LeaderEpoch = -1
			all = append(all, leaderFact(t.Name, p))
		}
	}
	return all
}

func clusterFact(id []byte) fact { return fact{"cluster id", string(id)} }

// brokersFact is the list of brokers in whatever order.
func brokersFact(brokers []kafka.Broker) fact {
	var all []string
	for _, b := range brokers {
		all = append(all, fmt.Sprintf("%d@%s:%d", b.NodeID, b.Host, b.Port))
	}
	slices.Sort(all)
	return fact{"brokers", strings.Join(all, " ")}
}

// topicsFact is which topics there are, in whatever order.
func topicsFact(topics []kafka.Topic) fact {
	var names []string
	for _, t := range topics {
		names = append(names, string(t.Name))
	}
	slices.Sort(names)
	h := fnv.New64a()
	for _, n := range names {
		_, _ = h.Write(append([]byte(n), 0))
	}
	return fact{"topics", fmt.Sprintf("%d of them, %016x", len(names), h.Sum64())}
}

func leaderFact(topic []byte, p kafka.Partition) fact {
	of := fmt.Sprintf("topic %s partition %d", topic, p.Index)
	if p.LeaderEpoch < 0 {
		return fact{of, fmt.Sprintf("leader %d", p.Leader)}
	}
	return fact{of, fmt.Sprintf("leader %d epoch %d", p.Leader, p.LeaderEpoch)}
}

func coordinatorFact(group string, c kafka.Coordinator) fact {
	if c.ErrorCode != 0 {
		return fact{"coordinator of " + group, coordinatorError(c.ErrorCode)}
	}
	return fact{"coordinator of " + group, fmt.Sprintf("%d@%s:%d", c.NodeID, c.Host, c.Port)}
}

func coordinatorError(code int16) string { return fmt.Sprintf("error %d", code) }
