package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const tagLimit = 16

func frame(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFrameSizeNamesWhatIsNotKafka(t *testing.T) {
	const limit = 2 << 20
	for _, c := range []struct {
		in    string
		size  int
		fault Fault
	}{
		{"\x00\x00\x00\x08", 12, OK},
		{"\x00\x20\x00\x00", 4 + limit, OK},
		{"\x00\x20\x00\x01", 0, FaultSize},
		{"\x7f\xff\xff\xff", 0, FaultSize},
		{"\xff\xff\xff\xff", 0, FaultSize},
		{"\x00\x00\x00\x00", 0, FaultSize},
		{"\x00\x00\x00\x07", 0, FaultSize},
		{"\x16\x03\x01\x02", 0, FaultTLS},
		{"\x15\x03\x03\x00", 0, FaultTLS},
		{"GET / HTTP/1.1", 0, FaultHTTP},
		{"HEAD / HTTP/1.1", 0, FaultHTTP},
		{"PROXY TCP4 ", 0, FaultProxy},
		{"\r\n\r\n\x00\r\nQUIT\n", 0, FaultProxy},
		{"SSH-2.0-x", 0, FaultSSH},
	} {
		size, fault := FrameSize([]byte(c.in), limit)
		if size != c.size || fault != c.fault {
			t.Errorf("%q: %d %v, want %d %v", c.in, size, fault, c.size, c.fault)
		}
	}
}

func TestParseHeader(t *testing.T) {
	manyTags := append(frame(t, "00000000001200040000000200017411"), bytes.Repeat([]byte{0, 0}, 17)...)
	for name, c := range map[string]struct {
		frame []byte
		h     Header
		body  string
		fault Fault
	}{
		"v1":                {frame(t, "0000000f000300000000000300017400000000"), Header{3, 0, 3, []byte("t")}, "\x00\x00\x00\x00", OK},
		"v2":                {frame(t, "00000016001200040000000200017400056b76697004312e3000"), Header{18, 4, 2, []byte("t")}, "\x05kvip\x041.0\x00", OK},
		"null client id":    {frame(t, "0000000a00120000800000ffffff"), Header{18, 0, -2147483393, nil}, "", OK},
		"tags skipped":      {frame(t, "000000000012000400000002ffff02000161050162"), Header{18, 4, 2, nil}, "", OK},
		"tags out of order": {frame(t, "000000000012000400000002ffff02050161020162"), Header{18, 4, 2, nil}, "", OK},
		"too many tags":     {manyTags, Header{18, 4, 2, []byte("t")}, "", FaultHeader},
		"2^32-1 tags":       {frame(t, "000000000012000400000002ffffffffffff0f"), Header{18, 4, 2, nil}, "", FaultHeader},
		"endless varint":    {frame(t, "000000000012000400000002ffffffffffffffffffffffff"), Header{18, 4, 2, nil}, "", FaultHeader},
		"client id too long": {frame(t, "000000000012000000000002000574"), Header{18, 0, 2, nil}, "",
			FaultHeader},
		"client id length -2":   {frame(t, "000000000012000000000002fffe"), Header{18, 0, 2, nil}, "", OK},
		"header v0":             {frame(t, "000000080007000000000002"), Header{7, 0, 2, nil}, "", FaultHeader},
		"unknown key, no tags":  {frame(t, "0000000b03e7000000000007000174"), Header{999, 0, 7, []byte("t")}, "", OK},
		"nothing after the ids": {frame(t, "00000008001200000000000b"), Header{18, 0, 11, nil}, "", FaultHeader},
	} {
		h, body, fault := ParseHeader(c.frame, tagLimit)
		if fault != c.fault {
			t.Errorf("%s: fault %v, want %v", name, fault, c.fault)
			continue
		}
		if h.Key != c.h.Key || h.Version != c.h.Version || h.CorrelationID != c.h.CorrelationID {
			t.Errorf("%s: %+v, want %+v", name, h, c.h)
		}
		if fault == OK && (string(h.ClientID) != string(c.h.ClientID) || string(body) != c.body) {
			t.Errorf("%s: client id %q, body %q", name, h.ClientID, body)
		}
	}
}

func TestFlexibleAgreesWithKmsg(t *testing.T) {
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		req := kmsg.RequestForKey(key)
		if req == nil {
			continue
		}
		for v := int16(0); v <= req.MaxVersion(); v++ {
			if req.SetVersion(v); Flexible(key, v) != req.IsFlexible() {
				t.Errorf("key %d v%d: flexible is %v, kmsg says %v", key, v, Flexible(key, v), req.IsFlexible())
			}
		}
	}
	if Flexible(-1, 3) || Flexible(999, 3) {
		t.Error("an unknown key is taken for flexible")
	}
	if Flexible(18, -1) {
		t.Error("version -1 is taken for flexible")
	}
}

// metadataRequests are the shapes of Metadata requests that parsing must tell apart.
func metadataRequests(version int16) []*kmsg.MetadataRequest {
	named := func(names ...string) []kmsg.MetadataRequestTopic {
		ts := []kmsg.MetadataRequestTopic{}
		for _, n := range names {
			ts = append(ts, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(n)})
		}
		return ts
	}
	shapes := [][]kmsg.MetadataRequestTopic{named(), named("a"), named("a", "", "topic-b", "a")}
	if version >= 1 {
		shapes = append(shapes, nil)
	}
	if version >= 10 {
		shapes = append(shapes, []kmsg.MetadataRequestTopic{{TopicID: [16]byte{1, 2}}, {TopicID: [16]byte{3}, Topic: kmsg.StringPtr("x")}})
	}
	var qs []*kmsg.MetadataRequest
	for _, s := range shapes {
		for _, flags := range []bool{false, true} {
			q := kmsg.NewPtrMetadataRequest()
			q.Version, q.Topics = version, s
			q.AllowAutoTopicCreation = flags || version < 4
			q.IncludeClusterAuthorizedOperations = flags && version >= 8 && version <= 10
			q.IncludeTopicAuthorizedOperations = flags && version >= 8
			qs = append(qs, q)
		}
	}
	return qs
}

func parseMetadata(body []byte, version int16, tags int) (q MetadataRequest, fault Fault) {
	fault = q.Parse(body, version, tags)
	return q, fault
}

func TestParseMetadataAgreesWithKmsg(t *testing.T) {
	for v := int16(0); v <= 13; v++ {
		for i, want := range metadataRequests(v) {
			body := want.AppendTo(nil)
			q, fault := parseMetadata(body, v, tagLimit)
			if fault != OK {
				t.Errorf("v%d shape %d: %v", v, i, fault)
				continue
			}
			if msg := differs(&q, want); msg != "" {
				t.Errorf("v%d shape %d: %s", v, i, msg)
			}
			if _, fault := parseMetadata(append(body[:len(body):len(body)], 1, 2, 3), v, tagLimit); fault != OK {
				t.Errorf("v%d shape %d: trailing bytes are a fault", v, i)
			}
			for cut := range body {
				if _, fault := parseMetadata(body[:cut], v, tagLimit); fault == OK {
					t.Errorf("v%d shape %d cut to %d of %d bytes: no fault", v, i, cut, len(body))
				}
			}
		}
	}
}

// differs compares a parsed request with kmsg's reading.
func differs(q *MetadataRequest, want *kmsg.MetadataRequest) string {
	all := want.Topics == nil || want.Version == 0 && len(want.Topics) == 0
	switch {
	case q.All != all:
		return "all topics or not"
	case q.Count != len(want.Topics):
		return "count"
	case want.Version >= 4 && q.AutoCreate != want.AllowAutoTopicCreation, want.Version < 4 && !q.AutoCreate:
		return "auto create"
	case q.ClusterOps != want.IncludeClusterAuthorizedOperations:
		return "cluster operations"
	case q.TopicOps != want.IncludeTopicAuthorizedOperations:
		return "topic operations"
	}
	it := q.Topics()
	var got MetadataTopic
	for _, w := range want.Topics {
		if !it.Next(&got) || (got.Name == nil) != (w.Topic == nil) || w.Topic != nil && string(got.Name) != *w.Topic ||
			want.Version >= 10 && got.ID != w.TopicID {
			return "topics"
		}
	}
	if it.Next(&got) {
		return "a topic too many"
	}
	return ""
}

func TestParseMetadataRefusesCountsBeyondTheBytes(t *testing.T) {
	for name, c := range map[string]struct {
		version int16
		body    string
	}{
		"2^31-1":            {1, "7fffffff0000"},
		"2^20":              {1, "00100000000161"},
		"null in v0":        {0, "ffffffff"},
		"compact 2^31-2":    {9, "ffffffff07000000"},
		"overlong varint":   {9, "ffffffffffffffffff7f"},
		"null name in v9":   {9, "0200000000000000"},
		"null name in v1":   {1, "00000001ffff"},
		"name past the end": {1, "00000001010061"},
	} {
		if _, fault := parseMetadata(frame(t, c.body), c.version, tagLimit); fault != FaultBody {
			t.Errorf("%s: %v, want %v", name, fault, FaultBody)
		}
	}
}

func TestParseApiVersions(t *testing.T) {
	q := kmsg.NewPtrApiVersionsRequest()
	q.ClientSoftwareName, q.ClientSoftwareVersion = "kvip", "1.0"
	for v := int16(0); v <= 5; v++ {
		q.Version = v
		for _, known := range []bool{false, true} {
			q.ClusterID, q.NodeID = nil, -1
			if known && v >= 5 {
				q.ClusterID, q.NodeID = kmsg.StringPtr("c"), 3
			}
			got, fault := ParseApiVersions(q.AppendTo(nil), v, tagLimit)
			if fault != OK {
				t.Fatalf("v%d: %v", v, fault)
			}
			if v >= 3 && (string(got.SoftwareName) != "kvip" || string(got.SoftwareVersion) != "1.0") {
				t.Errorf("v%d: software %q %q", v, got.SoftwareName, got.SoftwareVersion)
			}
			if want := known && v >= 5; got.HasClusterID != want || got.HasNodeID != want {
				t.Errorf("v%d: cluster and node %v %v, want %v", v, got.HasClusterID, got.HasNodeID, want)
			}
		}
	}
	for s, want := range map[string]bool{"": false, "a": true, "-a": false, "a.": false, "apache-kafka-java": true, "a b": false, "ä": false} {
		if ValidSoftware([]byte(s)) != want {
			t.Errorf("software name %q: valid is %v", s, !want)
		}
	}
}

func TestParseDescribeCluster(t *testing.T) {
	q := kmsg.NewPtrDescribeClusterRequest()
	q.IncludeClusterAuthorizedOperations, q.EndpointType, q.IncludeFencedBrokers = true, 2, true
	for v := int16(0); v <= 2; v++ {
		q.Version = v
		got, fault := ParseDescribeCluster(q.AppendTo(nil), v, tagLimit)
		want := DescribeClusterRequest{Ops: true, EndpointType: 1, Fenced: v >= 2}
		if v >= 1 {
			want.EndpointType = 2
		}
		if fault != OK || got != want {
			t.Errorf("v%d: %+v %v, want %+v", v, got, fault, want)
		}
	}
}

// FuzzFrame holds two promises about arbitrary bytes: the verdict does not depend on how the stream is cut, and what the
// in-place parsers accept is what kmsg reads from the same bytes.
func FuzzFrame(f *testing.F) {
	for v := int16(0); v <= 13; v++ {
		for _, q := range metadataRequests(v) {
			f.Add(kmsg.NewRequestFormatter(kmsg.FormatterClientID("f")).AppendRequest(nil, q, 7))
		}
	}
	for _, key := range []int16{18, 60} {
		q := kmsg.RequestForKey(key)
		for v := int16(0); v <= q.MaxVersion(); v++ {
			q.SetVersion(v)
			f.Add(kmsg.NewRequestFormatter().AppendRequest(nil, q, -1))
		}
	}
	f.Add([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < SizeBytes+MinFrame {
			return
		}
		n, fault := FrameSize(in, 1<<20)
		for cut := SizeBytes; cut < len(in); cut++ {
			if m, again := FrameSize(in[:cut], 1<<20); m != n || again != fault {
				t.Fatalf("cut at %d: %d %v, whole: %d %v", cut, m, again, n, fault)
			}
		}
		b := bytes.Clone(in) // take the whole input for one frame, whatever its size says
		binary.BigEndian.PutUint32(b, uint32(len(b)-SizeBytes))
		h, body, fault := ParseHeader(b, tagLimit)
		if fault != OK {
			return
		}
		switch h.Key {
		case KeyMetadata:
			fuzzMetadata(t, h, body)
		case KeyApiVersions:
			if h.Version >= 0 && h.Version <= 5 {
				if _, fault := ParseApiVersions(body, h.Version, tagLimit); fault == OK {
					mustRead(t, kmsg.NewPtrApiVersionsRequest(), h.Version, body)
				}
			}
		case KeyDescribeCluster:
			if h.Version >= 0 && h.Version <= 2 {
				if _, fault := ParseDescribeCluster(body, h.Version, tagLimit); fault == OK {
					mustRead(t, kmsg.NewPtrDescribeClusterRequest(), h.Version, body)
				}
			}
		}
	})
}

func mustRead(t *testing.T, q kmsg.Request, version int16, body []byte) {
	q.SetVersion(version)
	if err := q.ReadFrom(body); err != nil {
		t.Fatalf("accepted in place, but kmsg says %v", err)
	}
}

func fuzzMetadata(t *testing.T, h Header, body []byte) {
	if h.Version < 0 || h.Version > 13 {
		return
	}
	q, fault := parseMetadata(body, h.Version, tagLimit)
	if fault != OK {
		return
	}
	want := kmsg.NewPtrMetadataRequest()
	mustRead(t, want, h.Version, body)
	if msg := differs(&q, want); msg != "" {
		t.Fatalf("%s: in place %+v, kmsg %+v", msg, q, want)
	}
}
