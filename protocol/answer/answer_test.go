package answer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/wire"
)

// told is what a broker says of its cluster.
type told struct {
	kmsg.MetadataResponse
	desc kmsg.DescribeClusterResponse
}

// tell makes n brokers and topics of 3 partitions each.
func tell(brokers, topics int) *told {
	c := &told{MetadataResponse: kmsg.NewMetadataResponse(), desc: kmsg.NewDescribeClusterResponse()}
	c.Version, c.ClusterID, c.ControllerID = 13, kmsg.StringPtr("cluster-A"), 1
	c.desc.Version, c.desc.ClusterID = 2, *c.ClusterID
	for i := range brokers {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = int32(i+1), fmt.Sprintf("broker-%d.example", i+1), 9092
		if i%2 == 0 {
			b.Rack = kmsg.StringPtr("rack-" + string(rune('a'+i%3)))
		}
		c.Brokers = append(c.Brokers, b)
		d := kmsg.NewDescribeClusterResponseBroker()
		d.NodeID, d.Host, d.Port, d.Rack = b.NodeID, b.Host, b.Port, b.Rack
		c.desc.Brokers = append(c.desc.Brokers, d)
	}
	fenced := kmsg.NewDescribeClusterResponseBroker()
	fenced.NodeID, fenced.Host, fenced.Port, fenced.IsFenced = 99, "fenced.example", 9092, true
	c.desc.Brokers = append(c.desc.Brokers, fenced)
	for i := range topics {
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.TopicID = kmsg.StringPtr(fmt.Sprintf("topic-%05d", i)), [16]byte{1, byte(i >> 8), byte(i)}
		for p := range 3 {
			tp := kmsg.NewMetadataResponseTopicPartition()
			tp.Partition, tp.Leader, tp.LeaderEpoch = int32(p), int32(p%brokers+1), int32(i)
			tp.Replicas = []int32{1, 2, 3}[:min(3, brokers)]
			tp.ISR, tp.OfflineReplicas = tp.Replicas, []int32{}
			t.Partitions = append(t.Partitions, tp)
		}
		c.Topics = append(c.Topics, t)
	}
	return c
}

// view is the snapshot that a refresh makes of it, after prev if there is one.
func (c *told) view(t testing.TB, r *snapshot.Reader, prev *snapshot.Snapshot) *snapshot.Snapshot {
	t.Helper()
	desc := &snapshot.Encoded{Version: c.desc.Version, Body: c.desc.AppendTo(nil)}
	cand, fault := r.Read(snapshot.Encoded{Version: c.Version, Body: c.AppendTo(nil)}, desc, true, prev, snapshot.Rules{ClusterID: *c.ClusterID})
	if fault != nil {
		t.Fatal(fault)
	}
	return cand.Snapshot
}

// cluster is a snapshot of n brokers and topics of 3 partitions each.
func cluster(t testing.TB, brokers, topics int) *snapshot.Snapshot {
	t.Helper()
	return tell(brokers, topics).view(t, new(snapshot.Reader), nil)
}

// listed is a table as a 4.3 broker lists it, in short.
func listed() *snapshot.APIs {
	return &snapshot.APIs{
		Keys: []kmsg.ApiVersionsResponseApiKey{
			{ApiKey: 0, MinVersion: 0, MaxVersion: 13}, {ApiKey: 3, MinVersion: 0, MaxVersion: 20},
			{ApiKey: 10, MinVersion: 0, MaxVersion: 6}, {ApiKey: 18, MinVersion: 0, MaxVersion: 4},
			{ApiKey: 60, MinVersion: 0, MaxVersion: 2}, {ApiKey: 10001, MinVersion: 0, MaxVersion: 1},
		},
		SupportedFeatures: []kmsg.ApiVersionsResponseSupportedFeature{
			{Name: "group.version", MinVersion: 0, MaxVersion: 1}, {Name: "metadata.version", MinVersion: 7, MaxVersion: 29},
		},
		FinalizedFeatures:      []kmsg.ApiVersionsResponseFinalizedFeature{{Name: "metadata.version", MaxVersionLevel: 29, MinVersionLevel: 29}},
		FinalizedFeaturesEpoch: 42,
	}
}

func request(q kmsg.Request, correlationID int32) *Request {
	r := &Request{TagLimit: 16, Body: q.AppendTo(nil)}
	r.Key, r.Version, r.CorrelationID = q.Key(), q.GetVersion(), correlationID
	return r
}

// ask returns the answer's frame, or nil when the Set does not answer.
func ask(t testing.TB, s *Set, q *Request) []byte {
	t.Helper()
	out := NewOut(1)
	verdict, _ := s.Answer(out, q)
	if verdict != Answered {
		return nil
	}
	frame := bytes.Join(out.Parts(nil), nil)
	if len(frame) != out.Len() {
		t.Fatalf("%d bytes collected, Len says %d", len(frame), out.Len())
	}
	if n := int(binary.BigEndian.Uint32(frame)); n != len(frame)-4 {
		t.Fatalf("frame of %d bytes says %d", len(frame)-4, n)
	}
	if id := int32(binary.BigEndian.Uint32(frame[4:])); id != q.CorrelationID {
		t.Fatalf("correlation id %d, want %d", id, q.CorrelationID)
	}
	// What is left comes out whole, however it is taken.
	for _, step := range []int{1 << 30, 7 + len(frame)/9} {
		var got []byte
		rest, _ := out.Rest(5)
		for !rest.Empty() {
			next := bytes.Join(rest.Parts(nil, 3), nil)
			next = next[:min(step, len(next))]
			got = append(got, next...)
			rest.Advance(len(next))
		}
		if !bytes.Equal(got, frame[5:]) {
			t.Fatalf("%d bytes at a time, the rest after 5 bytes is not what follows them", step)
		}
	}
	return frame
}

func decode(t testing.TB, frame []byte, resp kmsg.Response, version int16, headerTags bool) {
	t.Helper()
	resp.SetVersion(version)
	body := frame[8:]
	if headerTags {
		if body[0] != 0 {
			t.Fatalf("v%d: header tags %x", version, body[0])
		}
		body = body[1:]
	}
	if err := resp.ReadFrom(body); err != nil {
		t.Fatalf("v%d: %v", version, err)
	}
	resp.SetVersion(version)
	if again := resp.AppendTo(nil); len(again) != len(body) {
		t.Fatalf("v%d: %d bytes, of which the message is %d", version, len(body), len(again))
	}
}

func names(ns ...string) []kmsg.MetadataRequestTopic {
	ts := []kmsg.MetadataRequestTopic{}
	for _, n := range ns {
		ts = append(ts, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(n)})
	}
	return ts
}

func TestMetadataIsWhatKmsgEncodesInEveryVersion(t *testing.T) {
	truth := tell(3, 5)
	truth.Topics[1].Partitions[0].ErrorCode = 72
	snap := truth.view(t, new(snapshot.Reader), nil)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	for v := int16(0); v <= 13; v++ {
		for name, c := range map[string]struct {
			topics []kmsg.MetadataRequestTopic
			want   []int
		}{
			"all":   {nil, []int{0, 1, 2, 3, 4}},
			"none":  {names(), nil},
			"one":   {names("topic-00001"), []int{1}},
			"twice": {names("topic-00003", "topic-00000", "topic-00003"), []int{3, 0}},
			"by id": {[]kmsg.MetadataRequestTopic{{TopicID: snap.Topics[2].ID}}, []int{2}},
		} {
			if v == 0 && name == "none" || v < 12 && name == "by id" {
				continue
			}
			q := kmsg.NewPtrMetadataRequest()
			q.Version, q.Topics = v, c.topics
			frame := ask(t, set, request(q, 77))
			if frame == nil {
				t.Fatalf("v%d %s: not answered", v, name)
			}
			got := kmsg.NewPtrMetadataResponse()
			decode(t, frame, got, v, v >= 9)
			want := kmsg.NewPtrMetadataResponse()
			want.Brokers, want.ClusterID = snap.Brokers, &snap.ClusterID
			for _, i := range c.want {
				tp := truth.Topics[i]
				if v < 6 {
					tp.Partitions = slices.Clone(tp.Partitions)
					withoutListenerError(tp.Partitions)
				}
				want.Topics = append(want.Topics, tp)
			}
			want.Version = v
			reread := kmsg.NewPtrMetadataResponse()
			reread.Version = v
			if err := reread.ReadFrom(want.AppendTo(nil)); err != nil {
				t.Fatal(err)
			}
			if v >= 1 && snap.Broker(got.ControllerID) == nil {
				t.Errorf("v%d %s: controller %d is not listed", v, name, got.ControllerID)
			}
			got.ControllerID = reread.ControllerID
			slices.SortFunc(got.Brokers, func(a, b kmsg.MetadataResponseBroker) int { return int(a.NodeID - b.NodeID) })
			if diff := cmp.Diff(reread, got, cmpopts.IgnoreTypes(kmsg.Tags{})); diff != "" {
				t.Errorf("v%d %s (-kmsg +kvip):\n%s", v, name, diff)
			}
		}
	}
}

func TestMetadataGoesToABrokerWhenTheSnapshotCannotKnow(t *testing.T) {
	snap := cluster(t, 3, 3)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	known := kmsg.MetadataRequestTopic{TopicID: snap.Topics[0].ID}
	mixed := kmsg.MetadataRequestTopic{TopicID: snap.Topics[0].ID, Topic: kmsg.StringPtr("topic-00000")}
	for name, c := range map[string]struct {
		version int16
		topics  []kmsg.MetadataRequestTopic
		ops     bool
	}{
		"unknown name":               {4, names("ghost"), false},
		"known and unknown":          {9, names("topic-00000", "ghost"), false},
		"empty name":                 {1, names(""), false},
		"unknown id":                 {12, []kmsg.MetadataRequestTopic{{TopicID: [16]byte{0x11}}}, false},
		"id before v12":              {11, []kmsg.MetadataRequestTopic{known}, false},
		"null name":                  {12, []kmsg.MetadataRequestTopic{{}}, false},
		"id with name":               {13, []kmsg.MetadataRequestTopic{mixed}, false},
		"names and ids":              {13, append(names("topic-00001"), known), false},
		"topic operations":           {8, names("topic-00000"), true},
		"operations of the whole":    {10, nil, true},
		"operations in v13, no name": {13, nil, true},
	} {
		q := kmsg.NewPtrMetadataRequest()
		q.Version, q.Topics = c.version, c.topics
		q.IncludeTopicAuthorizedOperations = c.ops
		if verdict, fault := set.Answer(NewOut(1), request(q, 1)); verdict != Forward {
			t.Errorf("%s: verdict %d %v, want Forward", name, verdict, fault)
		}
	}
}

func TestMetadataV0GoesToABrokerWhileAReplicaIsMissing(t *testing.T) {
	truth := tell(3, 3)
	truth.Topics[1].Partitions[0].Replicas = []int32{1, 2, 7}
	snap := truth.view(t, new(snapshot.Reader), nil)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	q := kmsg.NewPtrMetadataRequest()
	for topic, want := range map[string]Verdict{"": Forward, "topic-00001": Forward, "topic-00000": Answered} {
		if q.Topics = names(); topic != "" {
			q.Topics = names(topic)
		}
		if verdict, _ := set.Answer(NewOut(1), request(q, 1)); verdict != want {
			t.Errorf("v0 of %q: verdict %d, want %d", topic, verdict, want)
		}
	}
}

func TestBrokerListIsHeadedInTurnByTheHeads(t *testing.T) {
	snap := cluster(t, 3, 1)
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.Topics = 12, names()
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"every broker":       {Input{}, "123123"},
		"weighted":           {Input{Heads: []int32{3, 1, 3}}, "313313"},
		"one is not listed":  {Input{Heads: []int32{3, 8}}, "123123"},
		"a policy that pins": {Input{Heads: []int32{1, 2, 3}, Pick: func(client uint64) int { return int(client) }}, "222222"},
	} {
		c.in.Snapshot, c.in.APIs = snap, listed()
		set := Build(c.in, nil)
		var got strings.Builder
		for range 6 {
			r := request(q, 1)
			r.Client = 1
			resp := kmsg.NewPtrMetadataResponse()
			decode(t, ask(t, set, r), resp, 12, true)
			ids := map[int32]bool{}
			for _, b := range resp.Brokers {
				ids[b.NodeID] = true
			}
			if len(ids) != 3 {
				t.Fatalf("%s: brokers %v", name, resp.Brokers)
			}
			fmt.Fprint(&got, resp.Brokers[0].NodeID)
		}
		if got.String() != c.want {
			t.Errorf("%s: heads %s, want %s", name, &got, c.want)
		}
	}
}

func TestApiVersions(t *testing.T) {
	set := Build(Input{Snapshot: cluster(t, 3, 1), APIs: listed()}, nil)
	ok := func(v int16) *kmsg.ApiVersionsRequest {
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version, q.ClientSoftwareName, q.ClientSoftwareVersion = v, "kvip", "1.0"
		return q
	}
	for v := int16(0); v <= 4; v++ {
		got := kmsg.NewPtrApiVersionsResponse()
		decode(t, ask(t, set, request(ok(v), 9)), got, v, false)
		if len(got.ApiKeys) != 6 || got.ApiKeys[0].MinVersion != 0 {
			t.Errorf("v%d: keys %v", v, got.ApiKeys)
		}
		if got.ApiKeys[1].MaxVersion != 13 {
			t.Errorf("v%d: Metadata up to %d, but kvip encodes up to 13", v, got.ApiKeys[1].MaxVersion)
		}
		if want := map[int16]int{3: 1, 4: 2}[v]; len(got.SupportedFeatures) != want {
			t.Errorf("v%d: %d supported features, want %d (KAFKA-17492)", v, len(got.SupportedFeatures), want)
		}
		if v >= 3 && got.FinalizedFeaturesEpoch != 42 {
			t.Errorf("v%d: finalized features epoch %d", v, got.FinalizedFeaturesEpoch)
		}
	}
	bad := ok(3)
	bad.ClientSoftwareName = "no spaces"
	got := kmsg.NewPtrApiVersionsResponse()
	decode(t, ask(t, set, request(bad, 9)), got, 3, false)
	if got.ErrorCode != 42 || len(got.ApiKeys) != 0 {
		t.Errorf("bad software name: %+v", got)
	}
}

// BL-01: seen on a real 4.3.1 broker, byte for byte.
func TestApiVersionsAboveTheMaximumIsAV0BodyWithTheOneEntry(t *testing.T) {
	set := Build(Input{Snapshot: cluster(t, 3, 1), APIs: listed()}, nil)
	want := []byte{0, 0, 0, 0x10, 0, 0, 0, 0x11, 0, 0x23, 0, 0, 0, 1, 0, 0x12, 0, 0, 0, 4}
	for _, v := range []int16{127, 99, 5, -1} {
		q := &Request{TagLimit: 16, Body: []byte("anything")}
		q.Key, q.Version, q.CorrelationID = 18, v, 0x11
		if got := ask(t, set, q); !bytes.Equal(got, want) {
			t.Errorf("v%d: %x, want %x", v, got, want)
		}
	}
}

func TestApiVersionsToAClientThatTakesTheVIPForABroker(t *testing.T) {
	apis := listed()
	apis.Keys[3].MaxVersion = 5
	set := Build(Input{Snapshot: cluster(t, 3, 1), APIs: apis}, nil)
	id := "cluster-A"
	for name, c := range map[string]struct {
		cluster *string
		node    int32
		want    int16
	}{"bootstrap": {nil, -1, 0}, "both": {&id, 1, 129}, "only the cluster": {&id, -1, 42}, "only the node": {nil, 1, 42}} {
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version, q.ClientSoftwareName, q.ClientSoftwareVersion = 5, "kvip", "1.0"
		q.ClusterID, q.NodeID = c.cluster, c.node
		got := kmsg.NewPtrApiVersionsResponse()
		decode(t, ask(t, set, request(q, 9)), got, 5, false)
		if got.ErrorCode != c.want {
			t.Errorf("%s: error %d, want %d", name, got.ErrorCode, c.want)
		}
	}
}

func TestDescribeCluster(t *testing.T) {
	snap := cluster(t, 3, 1)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	q := kmsg.NewPtrDescribeClusterRequest()
	for v := int16(0); v <= 2; v++ {
		for _, fenced := range []bool{false, true} {
			q.Version, q.IncludeFencedBrokers = v, fenced
			got := kmsg.NewPtrDescribeClusterResponse()
			decode(t, ask(t, set, request(q, 5)), got, v, true)
			want := 3
			if fenced && v >= 2 {
				want = 4
			}
			if len(got.Brokers) != want || got.ClusterID != "cluster-A" || snap.Broker(got.ControllerID) == nil {
				t.Errorf("v%d fenced %v: %+v", v, fenced, got)
			}
		}
	}
	q.EndpointType = 2
	if verdict, _ := set.Answer(NewOut(1), request(q, 1)); verdict != Forward {
		t.Error("controller endpoints are not a snapshot's to tell")
	}
	q.EndpointType, q.IncludeClusterAuthorizedOperations = 1, true
	if verdict, _ := set.Answer(NewOut(1), request(q, 1)); verdict != Forward {
		t.Error("authorized operations are not a snapshot's to tell")
	}
}

func TestCheckServesWhatTheBrokersList(t *testing.T) {
	set := Build(Input{Snapshot: cluster(t, 1, 1), APIs: listed()}, nil)
	for _, c := range []struct {
		key, version int16
		want         wire.Fault
	}{
		{3, 13, wire.OK}, {3, 14, wire.FaultVersion}, {3, -1, wire.FaultVersion}, {999, 0, wire.FaultKey}, {-1, 0, wire.FaultKey},
		{10001, 1, wire.OK}, {10001, 2, wire.FaultVersion}, {18, 99, wire.OK}, {11, 0, wire.FaultKey},
	} {
		if got := set.Check(c.key, c.version); got != c.want {
			t.Errorf("key %d v%d: %v, want %v", c.key, c.version, got, c.want)
		}
	}
}

func TestRegistryAndAnswerersAgree(t *testing.T) {
	for key := range Keys {
		if !Local(key) {
			t.Errorf("key %d has a highest version but no answerer", key)
		}
	}
	for key, f := range answerers {
		if _, ok := Keys[int16(key)]; ok != (f != nil) {
			t.Errorf("key %d has an answerer but no highest version", key)
		}
	}
}

// lookups are the requests of the hot path.
func lookups(s *snapshot.Snapshot) map[string]*Request {
	q := kmsg.NewPtrMetadataRequest()
	q.Version = 12
	all := request(q, 1)
	q.Topics = names(s.Topics[len(s.Topics)/2].Name)
	one := request(q, 1)
	q.Topics = []kmsg.MetadataRequestTopic{{TopicID: s.Topics[0].ID}}
	id := request(q, 1)
	a := kmsg.NewPtrApiVersionsRequest()
	a.Version, a.ClientSoftwareName, a.ClientSoftwareVersion = 4, "kvip", "1.0"
	d := kmsg.NewPtrDescribeClusterRequest()
	return map[string]*Request{"all": all, "one": one, "id": id, "api versions": request(a, 1), "describe cluster": request(d, 1)}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	snap := cluster(t, 3, 100)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	out := NewOut(1)
	parts := make([][]byte, 0, 16)
	for name, q := range lookups(snap) {
		if n := testing.AllocsPerRun(1000, func() {
			out.Reset()
			if v, _ := set.Answer(out, q); v != Answered {
				t.Fatal(name, v)
			}
			parts = out.Parts(parts[:0])
		}); n != 0 {
			t.Errorf("%s: %v allocations a lookup", name, n)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	snap := cluster(b, 3, 100)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	out := NewOut(1)
	for name, q := range lookups(snap) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				out.Reset()
				set.Answer(out, q)
			}
		})
	}
}
