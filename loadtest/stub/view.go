package stub

import (
	_ "embed"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// table is the body of a Kafka 4.3.1's answer to ApiVersions v4.
//
//go:embed apiversions-4.3.1.bin
var table []byte

const (
	unknownTopic       = 3
	leaderNotAvailable = 5
	unsupportedVersion = 35
	unknownTopicID     = 100
	noOperations       = math.MinInt32 // authorized operations that were not asked for

	maxMetadata    = 13
	maxDescribe    = 2
	maxCoordinator = 6
	maxAPIVersions = 4
)

// view is what one broker knows. It is not changed once brokers serve it.
type view struct {
	number uint64
	meta   *kmsg.MetadataResponse
	byName map[string]int
	byID   map[[16]byte]int
	// offline says that a replica's broker is not listed, which Metadata v0 says differently.
	offline bool
	all     [maxMetadata + 1]ready
}

// ready is the answer for all topics, encoded when it is first asked for.
type ready struct {
	once  sync.Once
	bytes []byte
}

var views atomic.Uint64

func newView(meta *kmsg.MetadataResponse) *view {
	v := &view{number: views.Add(1), meta: meta, byName: make(map[string]int, len(meta.Topics)), byID: make(map[[16]byte]int, len(meta.Topics))}
	for i := range meta.Topics {
		v.byName[*meta.Topics[i].Topic] = i
		v.byID[meta.Topics[i].TopicID] = i
		v.offline = v.offline || slices.ContainsFunc(meta.Topics[i].Partitions, func(p kmsg.MetadataResponseTopicPartition) bool { return len(p.OfflineReplicas) > 0 })
	}
	return v
}

func (v *view) lists(id int32) bool {
	return slices.ContainsFunc(v.meta.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == id })
}

// metadata returns the answer's header tags and body.
func (v *view) metadata(q *kmsg.MetadataRequest) []byte {
	if q.Topics == nil || q.Version == 0 && len(q.Topics) == 0 {
		r := &v.all[q.Version]
		r.once.Do(func() { r.bytes = slices.Clip(v.encode(q.Version, v.meta.Topics)) })
		return r.bytes
	}
	topics := make([]kmsg.MetadataResponseTopic, 0, len(q.Topics))
	for i := range q.Topics {
		topics = append(topics, v.find(&q.Topics[i]))
	}
	return v.encode(q.Version, topics)
}

func (v *view) find(t *kmsg.MetadataRequestTopic) kmsg.MetadataResponseTopic {
	if t.Topic != nil {
		if i, ok := v.byName[*t.Topic]; ok {
			return v.meta.Topics[i]
		}
		return kmsg.MetadataResponseTopic{ErrorCode: unknownTopic, Topic: t.Topic, AuthorizedOperations: noOperations}
	}
	if i, ok := v.byID[t.TopicID]; ok {
		return v.meta.Topics[i]
	}
	return kmsg.MetadataResponseTopic{ErrorCode: unknownTopicID, TopicID: t.TopicID, AuthorizedOperations: noOperations}
}

func (v *view) encode(version int16, topics []kmsg.MetadataResponseTopic) []byte {
	resp := *v.meta
	resp.Version, resp.Topics, resp.AuthorizedOperations = version, topics, noOperations
	var b []byte
	if resp.IsFlexible() {
		b = append(b, 0) // header tags
	}
	return resp.AppendTo(b)
}

func (v *view) describe(q *kmsg.DescribeClusterRequest) []byte {
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.Version, resp.ClusterID, resp.ControllerID, resp.ClusterAuthorizedOperations = q.Version, *v.meta.ClusterID, v.meta.ControllerID, noOperations
	resp.EndpointType = 1
	for _, b := range v.meta.Brokers {
		resp.Brokers = append(resp.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: b.NodeID, Host: b.Host, Port: b.Port, Rack: b.Rack})
	}
	return resp.AppendTo([]byte{0})
}

var seed = maphash.MakeSeed()

// coordinator names a broker for each key.
func (v *view) coordinator(q *kmsg.FindCoordinatorRequest) []byte {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	resp.Version = q.Version
	broker := func(key string) kmsg.MetadataResponseBroker {
		return v.meta.Brokers[maphash.String(seed, key)%uint64(len(v.meta.Brokers))]
	}
	b := broker(q.CoordinatorKey)
	resp.NodeID, resp.Host, resp.Port = b.NodeID, b.Host, b.Port
	for _, key := range q.CoordinatorKeys {
		b := broker(key)
		resp.Coordinators = append(resp.Coordinators, kmsg.FindCoordinatorResponseCoordinator{Key: key, NodeID: b.NodeID, Host: b.Host, Port: b.Port})
	}
	var out []byte
	if resp.IsFlexible() {
		out = append(out, 0)
	}
	return resp.AppendTo(out)
}

// apiVersions answers as KIP-511 says: what is not known gets error 35 in version 0.
func apiVersions(version int16) []byte {
	if version == maxAPIVersions {
		return table
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = maxAPIVersions
	if err := resp.ReadFrom(table); err != nil {
		panic("stub: the embedded ApiVersions answer: " + err.Error()) // the test reads it
	}
	if version < 0 || version > maxAPIVersions {
		resp.ErrorCode, version = unsupportedVersion, 0
		resp.ApiKeys = slices.DeleteFunc(resp.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey != 18 })
	}
	if version < maxAPIVersions { // KAFKA-17492: before v4 a minimum of 0 cannot be said
		resp.SupportedFeatures = slices.DeleteFunc(resp.SupportedFeatures, func(f kmsg.ApiVersionsResponseSupportedFeature) bool { return f.MinVersion == 0 })
	}
	resp.Version = version
	return resp.AppendTo(nil)
}
