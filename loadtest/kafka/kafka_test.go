package kafka

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func ptr(s string) *string { return &s }

// fullMetadata fills every field, so that a decoder that misplaces one cannot pass.
func fullMetadata(version int16) *kmsg.MetadataResponse {
	r := kmsg.NewPtrMetadataResponse()
	r.Version = version
	r.ThrottleMillis = 77
	r.ClusterID = ptr("Zm9vYmFyYmF6cXV4cXV1eA")
	r.ControllerID = 2
	r.ErrorCode = 129
	r.AuthorizedOperations = 3
	for i, rack := range []*string{ptr("rack-a"), nil, ptr("")} {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = int32(i+1), "broker.example.com", int32(9092+i), rack
		r.Brokers = append(r.Brokers, b)
	}
	for i, name := range []string{"orders", "__consumer_offsets", "lost"} {
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.TopicID, t.IsInternal, t.AuthorizedOperations = ptr(name), [16]byte{byte(i + 1), 15: 9}, i == 1, 4
		if i == 2 {
			t.ErrorCode = 3
			if version >= 12 {
				t.Topic = nil
			}
		}
		for p := int32(0); p < int32(3*(1-i/2)); p++ {
			x := kmsg.NewMetadataResponseTopicPartition()
			x.Partition, x.Leader, x.LeaderEpoch = p, 1+p%3, 10+p
			x.Replicas, x.ISR = []int32{1, 2, 3}, []int32{1, 2}
			if p == 2 {
				x.ErrorCode, x.OfflineReplicas = 9, []int32{3}
			}
			t.Partitions = append(t.Partitions, x)
		}
		r.Topics = append(r.Topics, t)
	}
	return r
}

// wantMetadata reads kmsg's own decoding of the bytes, which drops what the version lacks.
func wantMetadata(t *testing.T, version int16, body []byte) Metadata {
	t.Helper()
	k := kmsg.NewPtrMetadataResponse()
	k.Version = version
	if err := k.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	bytesOf := func(s *string) []byte {
		if s == nil {
			return nil
		}
		return []byte(*s)
	}
	m := Metadata{ThrottleMillis: k.ThrottleMillis, ClusterID: bytesOf(k.ClusterID), ControllerID: k.ControllerID, ErrorCode: k.ErrorCode}
	for _, b := range k.Brokers {
		m.Brokers = append(m.Brokers, Broker{b.NodeID, []byte(b.Host), b.Port, bytesOf(b.Rack)})
	}
	for _, kt := range k.Topics {
		topic := Topic{ErrorCode: kt.ErrorCode, Name: bytesOf(kt.Topic), ID: kt.TopicID, Internal: kt.IsInternal}
		for _, p := range kt.Partitions {
			topic.Partitions = append(topic.Partitions, Partition{p.ErrorCode, p.Partition, p.Leader, p.LeaderEpoch})
		}
		m.Topics = append(m.Topics, topic)
	}
	return m
}

func TestMetadataOfEveryVersionReadsAsKmsgReadsIt(t *testing.T) {
	var reused Metadata // one value throughout: nothing of an earlier answer may stay in it
	for version := int16(0); version <= MaxMetadata; version++ {
		body := fullMetadata(version).AppendTo(nil)
		if err := reused.Decode(version, body); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantMetadata(t, version, body), reused, equateEmpty); diff != "" {
			t.Errorf("v%d (-kmsg +own):\n%s", version, diff)
		}
	}
}

// equateEmpty: a slice kept for reuse is empty where a fresh one is nil. Names keep the difference: null is not "".
var equateEmpty = cmp.FilterValues(
	func(a, b []Partition) bool { return len(a)+len(b) == 0 },
	cmp.Comparer(func(_, _ []Partition) bool { return true }))

func TestAPIVersionsOfEveryVersionReadsAsKmsgReadsIt(t *testing.T) {
	var got APIVersions
	for version := int16(0); version <= MaxAPIVersions; version++ {
		k := kmsg.NewPtrApiVersionsResponse()
		k.Version, k.ThrottleMillis, k.FinalizedFeaturesEpoch, k.ZkMigrationReady = version, 9, 1234, true
		for key := int16(0); key < 5; key++ {
			k.ApiKeys = append(k.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MinVersion: key % 2, MaxVersion: 10 + key})
		}
		k.SupportedFeatures = append(k.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{Name: "metadata.version", MinVersion: 1, MaxVersion: 29})
		k.FinalizedFeatures = append(k.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{Name: "metadata.version", MaxVersionLevel: 29, MinVersionLevel: 1})
		if err := got.Decode(version, k.AppendTo(nil)); err != nil {
			t.Fatal(err)
		}
		want := APIVersions{FeaturesEpoch: -1, Keys: []KeyRange{{0, 0, 10}, {1, 1, 11}, {2, 0, 12}, {3, 1, 13}, {4, 0, 14}}}
		if version >= 1 {
			want.ThrottleMillis = 9
		}
		if version >= 3 {
			want.FeaturesEpoch = 1234
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("v%d (-want +got):\n%s", version, diff)
		}
	}
}

func TestRefusedAPIVersionsIsReadAsVersion0(t *testing.T) {
	var got APIVersions
	body := []byte{0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4} // what Kafka 4.3 sends for v127
	if err := got.Decode(5, body); err != nil {
		t.Fatal(err)
	}
	if v, ok := got.Max(KeyAPIVersions, MaxAPIVersions); got.ErrorCode != UnsupportedVersion || v != 4 || !ok {
		t.Errorf("error %d, newest ApiVersions %d %v; want 35, 4 true", got.ErrorCode, v, ok)
	}
}

func TestABodyCutAnywhereIsAnErrorAndNeverAPanic(t *testing.T) {
	for version := int16(0); version <= MaxMetadata; version++ {
		body := fullMetadata(version).AppendTo(nil)
		for cut := range body {
			var m Metadata
			err := m.Decode(version, body[:cut])
			if !errors.Is(err, ErrShort) && !errors.Is(err, ErrMalformed) {
				t.Fatalf("v%d cut at %d of %d: %v", version, cut, len(body), err)
			}
		}
		var m Metadata
		if err := m.Decode(version, append(bytes.Clone(body), 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("v%d with a byte too many: %v", version, err)
		}
	}
}

func FuzzDecodeNeverPanics(f *testing.F) {
	for version := int16(0); version <= MaxMetadata; version++ {
		f.Add(version, fullMetadata(version).AppendTo(nil))
	}
	f.Fuzz(func(_ *testing.T, version int16, body []byte) {
		var m Metadata
		_ = m.Decode(version%(MaxMetadata+1), body)
		var a APIVersions
		_ = a.Decode(version%(MaxAPIVersions+1), body)
		var c FindCoordinator
		_ = c.Decode(version%(MaxFindCoordinator+1), body)
		var d DescribeCluster
		_ = d.Decode(version%(MaxDescribeCluster+1), body)
	})
}

func TestRequestsAreTheBytesThatKmsgWrites(t *testing.T) {
	const client = "loadtest"
	format := kmsg.NewRequestFormatter(kmsg.FormatterClientID(client))
	same := func(name string, got []byte, want kmsg.Request) {
		t.Helper()
		SetCorrelation(got, 42)
		if diff := cmp.Diff(format.AppendRequest(nil, want, 42), got); diff != "" {
			t.Errorf("%s v%d (-kmsg +own):\n%s", name, want.GetVersion(), diff)
		}
		if Correlation(got) != 42 {
			t.Errorf("%s v%d: correlation id reads %d", name, want.GetVersion(), Correlation(got))
		}
	}
	for version := int16(0); version <= MaxAPIVersions; version++ {
		want := kmsg.NewPtrApiVersionsRequest()
		want.Version, want.ClientSoftwareName, want.ClientSoftwareVersion = version, "apache-kafka-java", "4.4.0"
		same("ApiVersions", APIVersionsRequest(version, client, Software{"apache-kafka-java", "4.4.0"}), want)
	}
	for version := int16(0); version <= MaxMetadata; version++ {
		for _, ask := range []Lookup{{All: true}, {}, {Topics: []string{"orders"}, AutoCreate: true}, {Topics: []string{"a", "b"}}} {
			want := kmsg.NewPtrMetadataRequest()
			want.Version, want.AllowAutoTopicCreation = version, ask.AutoCreate
			if !ask.All || version == 0 {
				want.Topics = []kmsg.MetadataRequestTopic{}
			}
			for _, name := range ask.Topics {
				topic := kmsg.NewMetadataRequestTopic()
				topic.Topic = ptr(name)
				want.Topics = append(want.Topics, topic)
			}
			same("Metadata", MetadataRequest(version, client, ask), want)
		}
	}
	for version := int16(0); version <= MaxFindCoordinator; version++ {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.Version, find.CoordinatorKey, find.CoordinatorKeys = version, "group", []string{"group", "another"}
		same("FindCoordinator", FindCoordinatorRequest(version, client, "group", "another"), find)
	}
	for version := int16(0); version <= MaxDescribeCluster; version++ {
		describe := kmsg.NewPtrDescribeClusterRequest()
		describe.Version = version
		same("DescribeCluster", DescribeClusterRequest(version, client), describe)
	}
}

func TestCoordinatorsOfEveryVersionReadAsKmsgReadsThem(t *testing.T) {
	var got FindCoordinator
	for version := int16(0); version <= MaxFindCoordinator; version++ {
		k := kmsg.NewPtrFindCoordinatorResponse()
		k.Version, k.ThrottleMillis = version, 5
		k.ErrorCode, k.ErrorMessage, k.NodeID, k.Host, k.Port = 15, ptr("not yet"), 2, "b.example.com", 9092
		for i := range int32(2) {
			k.Coordinators = append(k.Coordinators, kmsg.FindCoordinatorResponseCoordinator{
				Key: "group", NodeID: i, Host: "b.example.com", Port: 9092 + i, ErrorCode: int16(14 * i), ErrorMessage: ptr("not yet"),
			})
		}
		body := k.AppendTo(nil)
		if err := got.Decode(version, body); err != nil {
			t.Fatal(err)
		}
		read := kmsg.NewPtrFindCoordinatorResponse() // drops what the version lacks
		read.Version = version
		if err := read.ReadFrom(body); err != nil {
			t.Fatal(err)
		}
		want := FindCoordinator{ThrottleMillis: read.ThrottleMillis}
		for _, c := range read.Coordinators {
			want.Coordinators = append(want.Coordinators, Coordinator{[]byte(c.Key), c.NodeID, []byte(c.Host), c.Port, c.ErrorCode})
		}
		if version < 4 {
			want.Coordinators = []Coordinator{{nil, read.NodeID, []byte(read.Host), read.Port, read.ErrorCode}}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("v%d (-kmsg +own):\n%s", version, diff)
		}
	}
}

func TestDescribeClusterOfEveryVersionReadsAsKmsgReadsIt(t *testing.T) {
	var got DescribeCluster
	for version := int16(0); version <= MaxDescribeCluster; version++ {
		k := kmsg.NewPtrDescribeClusterResponse()
		k.Version, k.ThrottleMillis, k.ErrorCode, k.ErrorMessage, k.EndpointType = version, 5, 41, ptr("no"), 2
		k.ClusterID, k.ControllerID, k.ClusterAuthorizedOperations = "Zm9vYmFyYmF6cXV4cXV1eA", 2, 7
		want := DescribeCluster{ThrottleMillis: 5, ErrorCode: 41, ClusterID: []byte(k.ClusterID), ControllerID: 2}
		for i, rack := range []*string{ptr("a"), nil} {
			id := int32(i + 1)
			k.Brokers = append(k.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: id, Host: "b.example.com", Port: 9091 + id, Rack: rack, IsFenced: i == 0})
			b := Broker{NodeID: id, Host: []byte("b.example.com"), Port: 9091 + id}
			if rack != nil {
				b.Rack = []byte(*rack)
			}
			want.Brokers = append(want.Brokers, b)
		}
		if err := got.Decode(version, k.AppendTo(nil)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("v%d (-want +own):\n%s", version, diff)
		}
	}
}

func TestResponseHeaderHasTagsWhereTheVersionHasThem(t *testing.T) {
	for _, c := range []struct {
		key, version int16
		frame        []byte
	}{
		{KeyMetadata, 8, []byte{0, 0, 0, 7, 1, 2}},
		{KeyMetadata, 9, []byte{0, 0, 0, 7, 0, 1, 2}},
		{KeyMetadata, 9, []byte{0, 0, 0, 7, 1, 5, 2, 9, 9, 1, 2}},
		{KeyAPIVersions, 4, []byte{0, 0, 0, 7, 1, 2}},
	} {
		id, body, err := Header(c.key, c.version, c.frame)
		if err != nil || id != 7 || !bytes.Equal(body, []byte{1, 2}) {
			t.Errorf("key %d v%d: id %d body %v err %v", c.key, c.version, id, body, err)
		}
	}
	if _, _, err := Header(KeyMetadata, 9, []byte{0, 0, 0}); !errors.Is(err, ErrShort) {
		t.Errorf("three bytes: %v, want ErrShort", err)
	}
}
