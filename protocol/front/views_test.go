package front

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
)

// changing is a cluster of one broker whose topics change, read as the pool reads it: each answer into the same buffer.
type changing struct {
	meta   kmsg.MetadataResponse
	reader snapshot.Reader
	buf    []byte
	snap   *snapshot.Snapshot
}

func (c *changing) next() *snapshot.Snapshot {
	c.buf = c.meta.AppendTo(c.buf[:0])
	cand, fault := c.reader.Read(snapshot.Encoded{Version: c.meta.Version, Body: c.buf}, nil, true, c.snap, snapshot.Rules{ClusterID: "A"})
	if fault != nil {
		panic(fault)
	}
	for i := range c.buf {
		c.buf[i] = 0xAA
	}
	c.snap = cand.Snapshot
	return c.snap
}

// Whoever reads slowly, or has half-closed, or is still reading while kvip drains, gets one view, whole, however many have
// come since: pages are shared and patched from view to view, and nobody may write to one that is being sent.
func TestSlowReadersGetOneViewWhole(t *testing.T) {
	versions := []int16{1, 9, 12} // one encoded, one encoded with tags, one sent as it is kept
	requests := map[int16][]byte{}
	for _, v := range versions {
		q := kmsg.NewPtrMetadataRequest()
		q.Version = v
		requests[v] = kmsg.NewRequestFormatter(kmsg.FormatterClientID("slow")).AppendRequest(nil, q, 7)
	}
	p := newPool(1)
	apis := &snapshot.APIs{FinalizedFeaturesEpoch: -1, Keys: []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 13}}}
	cluster := &changing{meta: kmsg.NewMetadataResponse()}
	cluster.meta.Version, cluster.meta.ClusterID, cluster.meta.ControllerID = 12, kmsg.StringPtr("A"), 1
	cluster.meta.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "b1", Port: 9092}}
	for i := range 5000 {
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic, topic.TopicID = kmsg.StringPtr(fmt.Sprintf("topic-%06d", i)), [16]byte{1, byte(i), byte(i >> 8)}
		topic.Partitions = make([]kmsg.MetadataResponseTopicPartition, 10)
		for i := range topic.Partitions {
			topic.Partitions[i].Partition = int32(i)
		}
		cluster.meta.Topics = append(cluster.meta.Topics, topic)
	}

	var mu sync.Mutex
	published := map[[sha256.Size]byte]int{} // by what is sent of it
	var last *answer.Set
	publish := func(generation int) {
		snap := cluster.next()
		fresh := answer.Build(answer.Input{Snapshot: snap, APIs: apis}, nil)
		for _, v := range versions {
			sum := sha256.Sum256(whole(fresh, v))
			mu.Lock()
			published[sum] = generation
			mu.Unlock()
		}
		last = answer.Build(answer.Input{Snapshot: snap, APIs: apis}, last)
		p.set.Store(last)
	}
	publish(0)

	s := start(t, p, Config{Loops: 2, Limits: Limits{Stalled: time.Second}}) // less than the whole takes
	var readers sync.WaitGroup
	for i := range 18 {
		c := dial(t, s)
		_ = c.SetReadBuffer(128 << 10)
		_, _ = c.Write(requests[versions[i%3]])
		if i%6 >= 3 {
			_ = c.CloseWrite()
		}
		readers.Go(func() {
			var size [4]byte
			if _, err := io.ReadFull(c, size[:]); err != nil {
				t.Errorf("reader %d: %v", i, err)
				return
			}
			frame := make([]byte, binary.BigEndian.Uint32(size[:]))
			for at := 0; at < len(frame); {
				to := min(at+len(frame)/10, len(frame))
				if _, err := io.ReadFull(c, frame[at:to]); err != nil {
					t.Errorf("reader %d after %d of %d bytes: %v", i, at, len(frame), err)
					return
				}
				at = to
				time.Sleep(250 * time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			if _, ok := published[sha256.Sum256(frame)]; !ok {
				t.Errorf("reader %d: %d bytes of no view that there was", i, len(frame))
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for generation := range 8 {
		ts := cluster.meta.Topics
		for range 50 { // patched in place
			ts[rng.IntN(len(ts))].Partitions[rng.IntN(10)].LeaderEpoch = int32(generation + 1)
		}
		if generation%3 == 2 { // put together anew
			cluster.meta.Topics = ts[1:]
		}
		publish(generation + 1)
		time.Sleep(60 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	s.Drain(ctx)
	readers.Wait()
}

// whole is all of the answer for all topics, without the frame's size.
func whole(s *answer.Set, version int16) []byte {
	q := kmsg.NewPtrMetadataRequest()
	q.Version = version
	r := &answer.Request{Body: q.AppendTo(nil), TagLimit: 64}
	r.Key, r.Version, r.CorrelationID = 3, version, 7
	out := answer.NewOut(1)
	for {
		if verdict, _ := s.Answer(out, r); verdict != answer.Later {
			break
		}
		time.Sleep(time.Millisecond)
	}
	var b []byte
	for _, part := range out.Parts(nil) {
		b = append(b, part...)
	}
	return b[4:]
}
