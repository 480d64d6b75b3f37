// Package snapshot holds one immutable view of one Kafka cluster: what its brokers said about brokers, topics and
// partitions at one moment, and which API versions they speak. It is data only: package backends decides which view is
// accepted, package protocol/answer turns a view into response bytes.
package snapshot

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Snapshot is one accepted view of a cluster. It is immutable once published: every slice and pointer in it is shared by
// concurrent readers.
type Snapshot struct {
	// Generation counts accepted views of one pool, from 1.
	Generation uint64
	// ClusterID is never empty.
	ClusterID string
	// KRaft says that controller ids in answers are a random live broker's (clients.md R16); in ZooKeeper mode it is
	// the real controller's.
	KRaft bool
	// ControllerID is the controller in ZooKeeper mode, always the id of a listed broker; in KRaft any listed one.
	ControllerID int32
	// Brokers are the live brokers that Metadata lists, ascending by node id, never empty.
	Brokers []kmsg.MetadataResponseBroker
	// Topics are all topics that Metadata lists, ascending by name, each without a topic-level error, with its
	// partitions ascending by index and exactly as a broker answers Metadata at the highest version both know. Pages
	// are their bytes, PageTopics of them each, and Partitions is the sum of theirs.
	Topics     []Topic
	Pages      []Page
	Partitions int
	// Described are the brokers of DescribeCluster, fenced ones included where the cluster tells them apart (v2),
	// ascending by node id; nil when the cluster has no DescribeCluster (before Kafka 2.8).
	Described []kmsg.DescribeClusterResponseBroker
	// HasTopicIDs says that the cluster gives topic ids (Kafka 2.8 and later).
	HasTopicIDs bool

	index *index
}

// index finds topics. Views with the same topics, by name and id, in the same places share it.
type index struct {
	names map[string]int32
	ids   map[[16]byte]int32
}

func newIndex(ts []Topic) *index {
	ix := &index{names: make(map[string]int32, len(ts)), ids: make(map[[16]byte]int32, len(ts))}
	for i := range ts {
		ix.names[ts[i].Name] = int32(i)
		if ts[i].hasID() {
			ix.ids[ts[i].ID] = int32(i)
		}
	}
	return ix
}

// Find returns the place in Topics of the topic of that name.
func (s *Snapshot) Find(name []byte) (i int32, ok bool) {
	if s == nil || s.index == nil {
		return 0, false
	}
	i, ok = s.index.names[string(name)]
	return i, ok
}

// FindID returns the place in Topics of the topic with that id.
func (s *Snapshot) FindID(id [16]byte) (i int32, ok bool) {
	if s.index == nil {
		return 0, false
	}
	i, ok = s.index.ids[id]
	return i, ok
}

// Broker returns the listed broker with that node id, or nil.
func (s *Snapshot) Broker(id int32) *kmsg.MetadataResponseBroker {
	i, ok := slices.BinarySearchFunc(s.Brokers, id, func(b kmsg.MetadataResponseBroker, id int32) int {
		return int(b.NodeID) - int(id)
	})
	if !ok {
		return nil
	}
	return &s.Brokers[i]
}

// Topic returns the topic of that name, or nil.
func (s *Snapshot) Topic(name string) *Topic {
	i, ok := s.Find([]byte(name))
	if !ok {
		return nil
	}
	return &s.Topics[i]
}

// APIs is what one broker, or the overlap of a pool's brokers, says in ApiVersions.
type APIs struct {
	// Keys are ascending by key.
	Keys []kmsg.ApiVersionsResponseApiKey
	// SupportedFeatures and FinalizedFeatures are ascending by name (KIP-584).
	SupportedFeatures []kmsg.ApiVersionsResponseSupportedFeature
	FinalizedFeatures []kmsg.ApiVersionsResponseFinalizedFeature
	// FinalizedFeaturesEpoch is -1 when unknown.
	FinalizedFeaturesEpoch int64
	ZkMigrationReady       bool
}

// Range returns the versions listed for a key, and whether it is listed.
func (a *APIs) Range(key int16) (min, max int16, ok bool) {
	i, ok := slices.BinarySearchFunc(a.Keys, key, func(k kmsg.ApiVersionsResponseApiKey, key int16) int {
		return int(k.ApiKey) - int(key)
	})
	if !ok {
		return 0, 0, false
	}
	return a.Keys[i].MinVersion, a.Keys[i].MaxVersion, true
}
