//go:build e2e

package stub

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
)

// What the stub encodes out of one answer of a real broker is, in every version and byte by byte, what that broker sends:
// figures taken over a stub of 100,000 partitions are then figures about a broker's bytes. KVIP_FULL: 5,000 partitions.
func TestTheStubsBytesAreABrokers(t *testing.T) {
	const partitions = 10
	topics := 100
	if os.Getenv("KVIP_FULL") != "" {
		topics = 500
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	k, err := lab.StartKafka(ctx, lab.KafkaConfig{Racks: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	began := time.Now()
	addr := k.Node(0).Addr()
	create(ctx, t, addr, topics, partitions)
	stub := settled(ctx, t, addr, topics, partitions)
	defer func() { _ = stub.Close() }()
	t.Logf("%d partitions after %v", topics*partitions, time.Since(began).Round(time.Second))

	compared := 0
	for _, q := range requests() {
		frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("stub-compare")).AppendRequest(nil, q, 7)
		own, err := ask(stub.Addrs()[0], frame)
		if err != nil {
			t.Fatalf("%s v%d of the stub: %v", kmsg.NameForKey(q.Key()), q.GetVersion(), err)
		}
		// A KRaft broker names a random one as controller: ask until it is the one that the stub names.
		var real []byte
		for tries := 0; !bytes.Equal(real, withoutEpoch(own, q)); tries++ {
			if real, err = ask(addr, frame); err != nil {
				t.Fatalf("%s v%d of the broker: %v", kmsg.NameForKey(q.Key()), q.GetVersion(), err)
			}
			real = withoutEpoch(real, q)
			if tries == 60 {
				t.Fatalf("%s v%d: the broker says\n%.400x\nthe stub says\n%.400x", kmsg.NameForKey(q.Key()), q.GetVersion(), real, own)
			}
		}
		compared += len(own)
	}
	t.Logf("%d bytes are equal", compared)
}

// requests are what the stub's answers are compared for.
func requests() (qs []kmsg.Request) {
	named := func(names ...string) []kmsg.MetadataRequestTopic {
		ts := []kmsg.MetadataRequestTopic{}
		for _, n := range names {
			ts = append(ts, kmsg.MetadataRequestTopic{Topic: &n})
		}
		return ts
	}
	for v := int16(0); v <= maxMetadata; v++ {
		for _, topics := range [][]kmsg.MetadataRequestTopic{nil, named(), named(TopicName(1)), named(TopicName(2), TopicName(0)), named("ghost")} {
			q := kmsg.NewPtrMetadataRequest()
			q.Version, q.Topics = v, topics
			if v < 4 && len(topics) == 1 && *topics[0].Topic == "ghost" {
				continue // would create it
			}
			qs = append(qs, q)
		}
	}
	for v := int16(0); v <= maxDescribe; v++ {
		q := kmsg.NewPtrDescribeClusterRequest()
		q.Version = v
		qs = append(qs, q)
	}
	for v := int16(0); v <= maxAPIVersions+1; v++ { // the last one is unknown to it
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version, q.ClientSoftwareName, q.ClientSoftwareVersion = v, "stub-compare", "1"
		qs = append(qs, q)
	}
	return qs
}

// withoutEpoch blanks the finalized features' epoch in ApiVersions v3 and v4, a log offset that moves by itself: 8 bytes of
// a tagged field before the one that lists the features.
func withoutEpoch(frame []byte, q kmsg.Request) []byte {
	if v := q.GetVersion(); q.Key() == 18 && (v == 3 || v == 4) {
		if at := bytes.Index(frame, []byte{1, 8, 0, 0, 0, 0}); at >= 0 { // tag 1, 8 bytes long
			frame = bytes.Clone(frame)
			clear(frame[at+2 : at+10])
		}
	}
	return frame
}

func create(ctx context.Context, t *testing.T, addr string, topics, partitions int) {
	t.Helper()
	const batch = 50
	for first := 0; first < topics; first += batch {
		q := kmsg.NewPtrCreateTopicsRequest()
		q.SetVersion(5)
		q.TimeoutMillis = 60_000
		for i := first; i < min(first+batch, topics); i++ {
			one := kmsg.NewCreateTopicsRequestTopic()
			one.Topic, one.NumPartitions, one.ReplicationFactor = TopicName(i), int32(partitions), 3
			q.Topics = append(q.Topics, one)
		}
		resp, err := lab.Exchange(ctx, addr, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range resp.(*kmsg.CreateTopicsResponse).Topics {
			if one.ErrorCode != 0 {
				t.Fatalf("create %s: error %d", one.Topic, one.ErrorCode)
			}
		}
	}
}

// settled waits until every partition has its leader and its replicas in sync, and two answers in a row say the same.
func settled(ctx context.Context, t *testing.T, addr string, topics, partitions int) *Cluster {
	t.Helper()
	q := kmsg.NewPtrMetadataRequest()
	q.Version = maxMetadata
	var last []byte
	for ctx.Err() == nil {
		resp, err := lab.Exchange(ctx, addr, q)
		if err != nil {
			t.Fatal(err)
		}
		m := resp.(*kmsg.MetadataResponse)
		good := 0
		for _, topic := range m.Topics {
			for _, p := range topic.Partitions {
				if p.ErrorCode == 0 && p.Leader >= 0 && len(p.ISR) == 3 {
					good++
				}
			}
		}
		controller := m.ControllerID
		m.ControllerID = 0
		now := m.AppendTo(nil)
		m.ControllerID = controller
		if good == topics*partitions && bytes.Equal(now, last) {
			c, err := Of(m)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		last = now
		time.Sleep(500 * time.Millisecond)
	}
	t.Fatalf("the topics are not ready: %v", ctx.Err())
	return nil
}

func ask(addr string, frame []byte) ([]byte, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(frame); err != nil {
		return nil, err
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > 64<<20 {
		return nil, fmt.Errorf("an answer of %d bytes", n)
	}
	out := append(head, make([]byte, n)...)
	_, err = io.ReadFull(c, out[4:])
	return out, err
}
