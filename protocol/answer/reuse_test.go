package answer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

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
	truth, reader := tell(3, 200), new(snapshot.Reader)
	snap := truth.view(t, reader, nil)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	some := func() *kmsg.MetadataResponseTopic { return &truth.Topics[rng.IntN(len(truth.Topics))] }
	changes := map[string]func(){
		"nothing":                    func() {},
		"a leader":                   func() { p := &some().Partitions[1]; p.Leader, p.LeaderEpoch = 3, p.LeaderEpoch+1 },
		"an error":                   func() { some().Partitions[0].ErrorCode = 72 },
		"a replica on a dead broker": func() { some().Partitions[2].Replicas = []int32{1, 9} },
		"a broker less":              func() { truth.Brokers = truth.Brokers[:2] },
		"a broker more":              func() { truth.Brokers = tell(3, 0).Brokers },
		"a topic more": func() {
			nt := tell(3, 1).Topics[0]
			nt.Topic, nt.TopicID = kmsg.StringPtr(fmt.Sprintf("topic-%05d-%x", rng.IntN(200), rng.Uint32())), [16]byte{9, byte(rng.Uint32())}
			truth.Topics = append(truth.Topics, nt)
		},
		"a topic less": func() { i := rng.IntN(len(truth.Topics)); truth.Topics = slices.Delete(truth.Topics, i, i+1) },
		"recreated":    func() { some().TopicID = [16]byte{8, byte(rng.Uint32())} },
	}
	for round := range 5 {
		for name, change := range changes {
			warm(t, set)
			change()
			next := truth.view(t, reader, snap)
			reused, fresh := Build(Input{Snapshot: next, APIs: listed()}, set), Build(Input{Snapshot: next, APIs: listed()}, nil)
			fresh.turn.Store(reused.turn.Load()) // the same broker heads both
			for v := int16(0); v <= 13; v++ {
				for _, topics := range [][]kmsg.MetadataRequestTopic{nil, names(next.Topics[len(next.Topics)/2].Name)} {
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
	truth, reader := tell(3, 1000), new(snapshot.Reader)
	snap := truth.view(t, reader, nil)
	set := Build(Input{Snapshot: snap, APIs: listed()}, nil)
	warm(t, set)
	truth.Topics[500].Partitions[0].LeaderEpoch++
	next := truth.view(t, reader, snap)
	again := Build(Input{Snapshot: next, APIs: listed()}, set)
	for family := range set.metadata.families {
		was, is := set.metadata.families[family].Load(), again.metadata.families[family].Load()
		if was == nil {
			continue
		}
		shared := 0
		for i := range is.pages {
			if is.pages[i].Same(&was.pages[i]) {
				shared++
			}
		}
		if shared != len(is.pages)-1 {
			t.Errorf("family of v%d: %d of %d pages are shared", family, shared, len(is.pages))
		}
	}
}

// A cluster of 100,000 partitions: what making the answers of one family of versions costs at first, and after a refresh
// with 0.1% of changes. v12 is sent as brokers send it, v9 is encoded; what reading costs is BenchmarkRead's.
func BenchmarkBuild(b *testing.B) {
	truth, reader := tell(3, 10000), new(snapshot.Reader)
	for i := range truth.Topics {
		ps := &truth.Topics[i].Partitions
		for p := (*ps)[0]; len(*ps) < 10; {
			p.Partition = int32(len(*ps))
			*ps = append(*ps, p)
		}
	}
	snap := truth.view(b, reader, nil)
	for i := range 100 { // one partition in each of as many topics
		truth.Topics[(i*7919)%len(truth.Topics)].Partitions[i%10].LeaderEpoch++
	}
	next, apis := truth.view(b, reader, snap), listed()
	for _, version := range []int16{12, 9} {
		first := func() *Set {
			s := Build(Input{Snapshot: snap, APIs: apis}, nil)
			s.metadata.build(s, version, nil)
			s.metadata.asked[version].Store(true)
			return s
		}
		set := first()
		b.Run(fmt.Sprintf("v%d/first", version), func(b *testing.B) {
			for b.Loop() {
				first()
			}
		})
		b.Run(fmt.Sprintf("v%d/0.1%%", version), func(b *testing.B) {
			for b.Loop() {
				Build(Input{Snapshot: next, APIs: apis}, set)
			}
		})
	}
}
