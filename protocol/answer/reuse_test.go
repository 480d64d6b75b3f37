package answer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

// refreshed returns a copy of s as a refresh would decode it, sharing nothing, after changing it.
func refreshed(s *snapshot.Snapshot, change func(*snapshot.Snapshot)) *snapshot.Snapshot {
	next := *s
	next.Generation++
	next.Topics = nil
	for _, t := range s.Topics {
		name := strings.Clone(*t.Topic)
		t.Topic, t.Partitions = &name, slices.Clone(t.Partitions)
		for i := range t.Partitions {
			t.Partitions[i].Replicas = slices.Clone(t.Partitions[i].Replicas)
		}
		next.Topics = append(next.Topics, t)
	}
	change(&next)
	slices.SortFunc(next.Topics, func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(*a.Topic, *b.Topic) })
	return &next
}

// warm asks for all topics in every version, so that the next Build encodes them ahead.
func warm(t testing.TB, s *Set) {
	for v := int16(0); v <= 13; v++ {
		q := kmsg.NewPtrMetadataRequest()
		q.Version = v
		r := request(q, 1)
		for {
			if verdict, _ := s.Answer(NewOut(1), r); verdict != Later {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func TestAnswersAfterARefreshAreThoseOfAFreshBuild(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	snap := cluster(3, 200)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	changes := map[string]func(*snapshot.Snapshot){
		"nothing": func(*snapshot.Snapshot) {},
		"a leader": func(s *snapshot.Snapshot) {
			p := &s.Topics[rng.IntN(len(s.Topics))].Partitions[1]
			p.Leader, p.LeaderEpoch = 3, p.LeaderEpoch+1
		},
		"an error": func(s *snapshot.Snapshot) { s.Topics[rng.IntN(len(s.Topics))].Partitions[0].ErrorCode = 72 },
		"a replica on a dead broker": func(s *snapshot.Snapshot) {
			s.Topics[rng.IntN(len(s.Topics))].Partitions[2].Replicas = []int32{1, 9}
		},
		"a broker less": func(s *snapshot.Snapshot) { s.Brokers = s.Brokers[:2] },
		"a topic more": func(s *snapshot.Snapshot) {
			nt := cluster(3, 1).Topics[0]
			nt.Topic, nt.TopicID = kmsg.StringPtr(fmt.Sprintf("topic-%05d-b", rng.IntN(200))), [16]byte{9, byte(rng.Uint32())}
			s.Topics = append(s.Topics, nt)
		},
		"a topic less": func(s *snapshot.Snapshot) { i := rng.IntN(len(s.Topics)); s.Topics = slices.Delete(s.Topics, i, i+1) },
		"recreated": func(s *snapshot.Snapshot) {
			s.Topics[rng.IntN(len(s.Topics))].TopicID = [16]byte{8, byte(rng.Uint32())}
		},
	}
	for round := range 5 {
		for name, change := range changes {
			warm(t, set)
			next := refreshed(snap, change)
			snapshot.Reuse(next, snap)
			reused, fresh := Build(Input{Snapshot: next, APIs: listed()}, set), Build(Input{Snapshot: next, APIs: listed()}, nil)
			fresh.turn.Store(reused.turn.Load()) // the same broker heads both
			for v := int16(0); v <= 13; v++ {
				for _, topics := range [][]kmsg.MetadataRequestTopic{nil, names(*next.Topics[len(next.Topics)/2].Topic)} {
					q := kmsg.NewPtrMetadataRequest()
					q.Version, q.Topics = v, topics
					r := request(q, 1)
					a, b := ask(t, reused, r), ask(t, fresh, r)
					if (a == nil) != (b == nil) || a != nil && !bytes.Equal(a, b) {
						t.Fatalf("round %d, %s, v%d: %d bytes after the refresh, %d from a fresh build", round, name, v, len(a), len(b))
					}
				}
			}
			snap, set = next, reused
		}
	}
}

func TestARefreshSharesWhatHasNotChanged(t *testing.T) {
	snap := cluster(3, 1000)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	warm(t, set)
	next := refreshed(snap, func(s *snapshot.Snapshot) { s.Topics[500].Partitions[0].LeaderEpoch++ })
	if n := snapshot.Reuse(next, snap); n != 1 {
		t.Fatalf("%d topics changed, want 1", n)
	}
	again := Build(Input{Snapshot: next, APIs: listed()}, set)
	for family := range set.metadata.families {
		was, is := set.metadata.families[family].Load(), again.metadata.families[family].Load()
		if was == nil {
			continue
		}
		shared := 0
		for i := range is.pages {
			if &is.pages[i].bytes[0] == &was.pages[i].bytes[0] {
				shared++
			}
		}
		if shared != len(is.pages)-1 {
			t.Errorf("family of v%d: %d of %d pages are shared", family, shared, len(is.pages))
		}
	}
}

// A cluster of 100,000 partitions: what a first build, an unchanged refresh and one with 0.1% of changes cost, for one
// version in use.
func BenchmarkBuild(b *testing.B) {
	snap := cluster(3, 10000)
	for i := range snap.Topics {
		for len(snap.Topics[i].Partitions) < 10 {
			p := snap.Topics[i].Partitions[0]
			p.Partition = int32(len(snap.Topics[i].Partitions))
			snap.Topics[i].Partitions = append(snap.Topics[i].Partitions, p)
		}
	}
	in := Input{Snapshot: snap, APIs: listed()}
	first := func() *Set {
		s := Build(in, nil)
		s.metadata.build(s, 12, nil)
		s.metadata.asked[12].Store(true)
		return s
	}
	set := first()
	next := refreshed(snap, func(s *snapshot.Snapshot) {
		for i := range 100 { // one partition in each of as many topics
			s.Topics[(i*7919)%len(s.Topics)].Partitions[i%10].LeaderEpoch++
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			first()
		}
	})
	b.Run("reuse", func(b *testing.B) {
		for b.Loop() {
			snapshot.Reuse(next, snap)
		}
	})
	b.Run("0.1%", func(b *testing.B) {
		for b.Loop() {
			Build(Input{Snapshot: next, APIs: in.APIs}, set)
		}
	})
}
