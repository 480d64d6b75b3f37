// Package answertest has the requests by which kvip's answers are compared with a broker's, and the comparison: the
// golden files, and the test that asks a running kvip and a running broker side by side, use the same.
package answertest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Cluster is what the requests are made for.
type Cluster struct {
	// Topics are three that exist.
	Topics [3]string
	// ID is the topic id of Topics[0], zero where the cluster has none.
	ID [16]byte
}

// Case is one request of one version.
type Case struct {
	Name    string
	Request kmsg.Request
}

// String names the case.
func (c Case) String() string {
	return fmt.Sprintf("%s v%d %s", kmsg.NameForKey(c.Request.Key()), c.Request.GetVersion(), c.Name)
}

// Frame is the case as bytes on the wire.
func (c Case) Frame(correlationID int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("kvip-compare")).AppendRequest(nil, c.Request, correlationID)
}

// Cases returns every request to compare, for every version that kmsg encodes up to max(key).
func (cl Cluster) Cases(max func(key int16) int16) []Case {
	var cs []Case
	add := func(version int16, name string, q kmsg.Request) {
		q.SetVersion(version)
		cs = append(cs, Case{name, q})
	}
	for v := int16(0); v <= max(3); v++ {
		cl.metadata(v, func(name string, q *kmsg.MetadataRequest) { add(v, name, q) })
	}
	for v := int16(0); v <= max(18); v++ {
		q := kmsg.NewPtrApiVersionsRequest()
		q.ClientSoftwareName, q.ClientSoftwareVersion = "kvip-compare", "1.0"
		add(v, "table", q)
		if v >= 3 {
			q := kmsg.NewPtrApiVersionsRequest()
			q.ClientSoftwareName, q.ClientSoftwareVersion = "not valid", "1.0"
			add(v, "bad software name", q)
		}
	}
	for v := int16(0); v <= max(60); v++ {
		add(v, "brokers", kmsg.NewPtrDescribeClusterRequest())
		ops := kmsg.NewPtrDescribeClusterRequest()
		ops.IncludeClusterAuthorizedOperations = true
		add(v, "operations", ops)
		if v >= 1 {
			q := kmsg.NewPtrDescribeClusterRequest()
			q.EndpointType = 2
			add(v, "controllers", q)
		}
		if v >= 2 {
			q := kmsg.NewPtrDescribeClusterRequest()
			q.IncludeFencedBrokers = true
			add(v, "fenced", q)
		}
	}
	for v := int16(0); v <= max(10); v++ {
		q := kmsg.NewPtrFindCoordinatorRequest()
		q.CoordinatorKey = "group-a"
		if v >= 4 {
			q.CoordinatorKeys = []string{"group-a", "group-b"}
		}
		add(v, "group", q)
	}
	return cs
}

func (cl Cluster) metadata(v int16, add func(string, *kmsg.MetadataRequest)) {
	ask := func(name string, topics []kmsg.MetadataRequestTopic) *kmsg.MetadataRequest {
		q := kmsg.NewPtrMetadataRequest()
		// Auto-creation stays off where it can be: what is unknown must stay so. Before v4 unknown names are left out.
		q.Topics, q.AllowAutoTopicCreation = topics, v < 4
		add(name, q)
		return q
	}
	named := func(names ...string) []kmsg.MetadataRequestTopic {
		ts := []kmsg.MetadataRequestTopic{}
		for _, n := range names {
			ts = append(ts, kmsg.MetadataRequestTopic{Topic: &n})
		}
		return ts
	}
	a, b := cl.Topics[0], cl.Topics[1]
	ask("all", nil)
	if v >= 1 {
		ask("none", named())
	}
	ask("one", named(a))
	ask("several", named(cl.Topics[2], a, b))
	ask("twice the same", named(b, a, b))
	ask("bad name", named("not/a topic"))
	ask("dots", named(".."))
	ask("250 characters", named(strings.Repeat("x", 250)))
	if v >= 4 {
		ask("unknown", named("ghost"))
		ask("known and unknown", named(a, "ghost"))
	}
	if v >= 8 {
		ask("topic operations", named(a)).IncludeTopicAuthorizedOperations = true
	}
	if v >= 8 && v <= 10 {
		ask("cluster operations", named()).IncludeClusterAuthorizedOperations = true
	}
	if v >= 12 && cl.ID != ([16]byte{}) {
		ask("by id", []kmsg.MetadataRequestTopic{{TopicID: cl.ID}})
		ask("by id twice", []kmsg.MetadataRequestTopic{{TopicID: cl.ID}, {TopicID: cl.ID}})
		ask("unknown id", []kmsg.MetadataRequestTopic{{TopicID: [16]byte{0x11, 1: 0x11}}})
		ask("known and unknown id", []kmsg.MetadataRequestTopic{{TopicID: cl.ID}, {TopicID: [16]byte{0x11, 1: 0x11}}})
		ask("id and name", []kmsg.MetadataRequestTopic{{TopicID: cl.ID}, {Topic: &b}})
	}
}

// Decode reads a whole response frame to a request; it fails on bytes that are missing or left over.
func Decode(req kmsg.Request, frame []byte) (kmsg.Response, error) {
	resp := req.ResponseKind()
	if len(frame) < 8 || int(binary.BigEndian.Uint32(frame)) != len(frame)-4 {
		return nil, fmt.Errorf("a frame of %d bytes", len(frame))
	}
	body := frame[8:]
	version := req.GetVersion()
	if v, ok := resp.(*kmsg.ApiVersionsResponse); ok {
		if len(body) >= 2 && binary.BigEndian.Uint16(body) == 35 {
			v.Version, version = 0, 0
		}
	} else if resp.IsFlexible() {
		if len(body) == 0 || body[0] != 0 {
			return nil, fmt.Errorf("tagged fields in the response header")
		}
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, err
	}
	resp.SetVersion(version)
	if n := len(resp.AppendTo(nil)); n != len(body) {
		return nil, fmt.Errorf("%d bytes, of which the message takes %d", len(body), n)
	}
	return resp, nil
}

// Diff compares two decoded answers field by field: "" when they say the same. What a broker may say differently from
// one answer to the next does not count: the order of brokers, topics, keys and features, the controller id of a KRaft
// cluster, the finalized features' epoch (a log offset that moves by itself), the throttle time.
func Diff(want, got kmsg.Response) string {
	normalize(want)
	normalize(got)
	return cmp.Diff(want, got, cmpopts.IgnoreTypes(kmsg.Tags{}), cmpopts.EquateEmpty())
}

func normalize(resp kmsg.Response) {
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		r.ControllerID, r.ThrottleMillis = 0, 0
		slices.SortFunc(r.Brokers, func(a, b kmsg.MetadataResponseBroker) int { return int(a.NodeID - b.NodeID) })
		slices.SortFunc(r.Topics, func(a, b kmsg.MetadataResponseTopic) int {
			if c := strings.Compare(deref(a.Topic), deref(b.Topic)); c != 0 {
				return c
			}
			return slices.Compare(a.TopicID[:], b.TopicID[:])
		})
		for _, t := range r.Topics {
			slices.SortFunc(t.Partitions, func(a, b kmsg.MetadataResponseTopicPartition) int { return int(a.Partition - b.Partition) })
		}
	case *kmsg.DescribeClusterResponse:
		r.ControllerID, r.ThrottleMillis = 0, 0
		slices.SortFunc(r.Brokers, func(a, b kmsg.DescribeClusterResponseBroker) int { return int(a.NodeID - b.NodeID) })
	case *kmsg.ApiVersionsResponse:
		r.FinalizedFeaturesEpoch, r.ThrottleMillis = 0, 0
		slices.SortFunc(r.ApiKeys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey - b.ApiKey) })
		slices.SortFunc(r.SupportedFeatures, func(a, b kmsg.ApiVersionsResponseSupportedFeature) int { return strings.Compare(a.Name, b.Name) })
		slices.SortFunc(r.FinalizedFeatures, func(a, b kmsg.ApiVersionsResponseFinalizedFeature) int { return strings.Compare(a.Name, b.Name) })
	case *kmsg.FindCoordinatorResponse:
		r.ThrottleMillis = 0
		slices.SortFunc(r.Coordinators, func(a, b kmsg.FindCoordinatorResponseCoordinator) int { return strings.Compare(a.Key, b.Key) })
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
