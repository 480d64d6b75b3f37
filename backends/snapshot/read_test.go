package snapshot

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// decoded is what the codec makes of an answer: the topics as they are to be in a snapshot, encoded by it, and those with
// an error; an error where the codec or a rule about topics finds one.
func decoded(version int16, body []byte) (topics map[string][]byte, errored []string, err error) {
	resp := kmsg.MetadataResponse{Version: version}
	if err := resp.ReadFrom(body); err != nil {
		return nil, nil, err
	}
	topics = map[string][]byte{}
	seen := map[string]bool{}
	for _, t := range resp.Topics {
		name := deref(t.Topic)
		if name == "" || seen[name] {
			return nil, nil, fmt.Errorf("%q: no name or twice", name)
		}
		seen[name] = true
		if t.ErrorCode != 0 || len(t.Partitions) == 0 {
			errored = append(errored, name)
			continue
		}
		slices.SortFunc(t.Partitions, func(a, b kmsg.MetadataResponseTopicPartition) int { return cmp.Compare(a.Partition, b.Partition) })
		for i, p := range t.Partitions {
			if p.Partition < 0 || i > 0 && t.Partitions[i-1].Partition == p.Partition {
				return nil, nil, fmt.Errorf("%q: partition %d", name, p.Partition)
			}
		}
		topics[name] = encodedTopic(t)
	}
	slices.Sort(errored)
	return topics, errored, nil
}

func encodedTopic(t kmsg.MetadataResponseTopic) []byte {
	resp := kmsg.MetadataResponse{Version: encodedAs, Topics: []kmsg.MetadataResponseTopic{t}}
	return resp.AppendTo(nil)
}

// compare says how a candidate differs from what the codec makes of the same bytes.
func compare(c *Candidate, version int16, body []byte) error {
	topics, errored, err := decoded(version, body)
	if err != nil {
		return fmt.Errorf("it is taken over, the codec says: %w", err)
	}
	s := c.Snapshot
	if len(s.Topics) != len(topics) || !slices.Equal(c.Errored, errored) {
		return fmt.Errorf("%d topics and %q with errors, the codec finds %d and %q", len(s.Topics), c.Errored, len(topics), errored)
	}
	var again kmsg.MetadataResponseTopic
	partitions := 0
	for i := range s.Topics {
		t := &s.Topics[i]
		if t.Decode(&again); !bytes.Equal(encodedTopic(again), topics[t.Name]) {
			return fmt.Errorf("topic %q is\n%x, the codec has\n%x", t.Name, encodedTopic(again), topics[t.Name])
		}
		if int(t.Partitions) != len(again.Partitions) || !bytes.Equal(s.Pages[i/PageTopics].Topic(i%PageTopics), t.Raw()) {
			return fmt.Errorf("topic %q: %d of %d partitions, or not what its page has", t.Name, t.Partitions, len(again.Partitions))
		}
		if at, ok := s.Find([]byte(t.Name)); !ok || int(at) != i || i > 0 && s.Topics[i-1].Name >= t.Name {
			return fmt.Errorf("topic %q is not where it is looked for", t.Name)
		}
		if _, ok := s.FindID(t.ID); ok != t.hasID() {
			return fmt.Errorf("topic %q by its id: found %v", t.Name, ok)
		}
		partitions += len(again.Partitions)
	}
	if s.Partitions != partitions {
		return fmt.Errorf("%d partitions, want %d", s.Partitions, partitions)
	}
	return nil
}

// Two answers, one after the other and from scratch, against the codec: whatever the bytes, what is known from the view
// before makes no difference.
func FuzzRead(f *testing.F) {
	for version := int16(2); version <= 13; version++ {
		a := sound()
		a.meta.Version = version
		a.topic("bad", 'b', 1)
		a.of("bad").ErrorCode = 5
		first := a.meta.AppendTo(nil)
		a.of("orders").Partitions[1].LeaderEpoch++
		a.topic("new", 'n', 40)
		ps := a.of("new").Partitions
		ps[3], ps[7] = ps[7], ps[3]
		a.of("new").UnknownTags.Set(7, []byte("seven"))
		ps[0].UnknownTags.Set(300, nil)
		f.Add(version, first, a.meta.AppendTo(nil))
		a.without("audit")
		f.Add(version, a.meta.AppendTo(nil), first)
	}
	f.Fuzz(func(t *testing.T, version int16, first, second []byte) {
		if version < 2 || version > 13 {
			return
		}
		var r Reader
		var prev *Snapshot
		for _, body := range [][]byte{first, second, second} {
			c, fault := r.Read(Encoded{version, body}, nil, true, prev, rules)
			whole, faultWhole := new(Reader).Read(Encoded{version, body}, nil, true, nil, rules)
			if (fault == nil) != (faultWhole == nil) || fault != nil && fault.Reason != faultWhole.Reason {
				t.Fatalf("after another answer: %v, by itself: %v", fault, faultWhole)
			}
			_, _, err := decoded(version, body)
			if fault != nil {
				if err == nil && fault.Reason == Malformed && !strings.Contains(fault.Detail, "node id") {
					t.Fatalf("the codec finds nothing wrong: %v", fault)
				}
				continue
			}
			for _, c := range []*Candidate{c, whole} {
				if err := compare(c, version, body); err != nil {
					t.Fatalf("v%d: %v", version, err)
				}
			}
			if !Same(c.Snapshot, whole.Snapshot) || c.Snapshot.HasTopicIDs != whole.Snapshot.HasTopicIDs {
				t.Fatal("the view depends on the one before")
			}
			if prev != nil && (c.Snapshot == prev) != (len(Doubts(prev, whole, nil)) == 0 && same(prev, whole.Snapshot)) {
				t.Fatalf("known as unchanged: %v", c.Snapshot == prev)
			}
			var b bytes.Buffer
			if err := c.Snapshot.WriteMetadata(&b); err != nil {
				t.Fatal(err)
			} else if again, fault := new(Reader).Read(Encoded{WrittenVersion, b.Bytes()}, nil, true, nil, rules); fault != nil || len(c.Snapshot.Topics) > 0 && !same(again.Snapshot, c.Snapshot) {
				t.Fatalf("as written it cannot be read again: %v", fault)
			}
			prev = c.Snapshot
		}
	})
}

// same says whether two views have the same bytes.
func same(a, b *Snapshot) bool {
	return Same(a, b) && slices.EqualFunc(a.Topics, b.Topics, func(x, y Topic) bool { return bytes.Equal(x.raw, y.raw) })
}

// manyTopics is an answer of that many topics in an order of the broker's own.
func manyTopics(n int, seed uint64) *answers {
	a := sound()
	a.meta.Topics = nil
	for i := range n {
		a.topic(fmt.Sprintf("topic-%06d", i), byte(i), 10)
		a.meta.Topics[i].TopicID = [16]byte{byte(i), byte(i >> 8), 1}
	}
	rand.New(rand.NewPCG(seed, 1)).Shuffle(n, func(i, j int) {
		a.meta.Topics[i], a.meta.Topics[j] = a.meta.Topics[j], a.meta.Topics[i]
	})
	return a
}

// Topics come, go and change while brokers take turns, each with an order of its own.
func TestManyAnswersOneAfterTheOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var r Reader
	var prev *Snapshot
	orders := []*answers{manyTopics(500, 1), manyTopics(500, 2)}
	for round := range 60 {
		for _, a := range orders { // what happens is the same for both
			ts := a.meta.Topics
			slices.SortFunc(ts, func(a, b kmsg.MetadataResponseTopic) int { return strings.Compare(*a.Topic, *b.Topic) })
		}
		switch at := rng.IntN(400); round % 4 {
		case 0:
			for _, a := range orders {
				a.meta.Topics[at].Partitions[at%10].LeaderEpoch++
				a.meta.Topics[at+30].Partitions[0].Leader = 2
			}
		case 1:
			for _, a := range orders {
				a.topic(fmt.Sprintf("topic-%06d-more", at), 'm', int32(1+round))
			}
		case 2:
			for _, a := range orders {
				a.meta.Topics = slices.Delete(a.meta.Topics, at, at+1)
			}
		}
		for i, a := range orders {
			rand.New(rand.NewPCG(uint64(i), 5)).Shuffle(len(a.meta.Topics), func(i, j int) {
				a.meta.Topics[i], a.meta.Topics[j] = a.meta.Topics[j], a.meta.Topics[i]
			})
			c, fault := a.readBy(&r, true, prev)
			if fault != nil {
				t.Fatal(fault)
			}
			if err := compare(c, a.meta.Version, a.meta.AppendTo(nil)); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if known := c.Snapshot == prev; known != (i == 1 || round%4 == 3) {
				t.Fatalf("round %d, broker %d: known as unchanged is %v", round, i, known)
			}
			prev = c.Snapshot
		}
	}
}

func TestARefreshSharesThePagesThatHaveNotChanged(t *testing.T) {
	a := manyTopics(1000, 1)
	var r Reader
	first, _ := a.readBy(&r, true, nil)
	a.of("topic-000500").Partitions[0].LeaderEpoch++
	second, fault := a.readBy(&r, true, first.Snapshot)
	if fault != nil {
		t.Fatal(fault)
	}
	shared := 0
	for i := range second.Snapshot.Pages {
		if second.Snapshot.Pages[i].Same(&first.Snapshot.Pages[i]) {
			shared++
		}
	}
	if all := len(second.Snapshot.Pages); shared != all-1 {
		t.Errorf("%d of %d pages are shared", shared, all)
	}
	if second.Snapshot.index != first.Snapshot.index {
		t.Error("the names were indexed again")
	}
}

// What a broker says again costs a comparison, whichever controller it names.
func TestAnUnchangedAnswerAllocatesNothing(t *testing.T) {
	a := manyTopics(1000, 1)
	var r Reader
	first, fault := a.readBy(&r, true, nil)
	if fault != nil {
		t.Fatal(fault)
	}
	a.meta.ControllerID, a.desc.ControllerID, a.meta.ThrottleMillis = 2, 0, 9
	meta, desc := Encoded{a.meta.Version, a.meta.AppendTo(nil)}, Encoded{a.desc.Version, a.desc.AppendTo(nil)}
	const few = 2 // the candidate
	if n := testing.AllocsPerRun(20, func() {
		if c, _ := r.Read(meta, &desc, true, first.Snapshot, rules); c.Snapshot != first.Snapshot {
			t.Fatal("it is not known again")
		}
	}); n > few {
		t.Errorf("%v allocations, want %d", n, few)
	}
}

// A frame that announces more than it has is refused before anything is made for it.
func TestCountsWithoutBytes(t *testing.T) {
	a := sound()
	a.meta.Topics = nil
	empty := a.meta.AppendTo(nil)
	for _, topics := range []uint32{1 << 20, 1<<31 - 1, 1<<32 - 1} {
		body := append(kbin.AppendUvarint(slices.Clone(empty[:len(empty)-2]), topics), 0)
		if n := testing.AllocsPerRun(1, func() {
			if _, fault := new(Reader).Read(Encoded{12, body}, nil, true, nil, rules); fault == nil && topics != 1<<32-1 {
				t.Errorf("%d topics in no bytes are taken over", topics)
			}
		}); n > 50 {
			t.Errorf("%d topics in no bytes: %v allocations", topics, n)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name    string
		version int16
		change  bool
		keep    bool
	}{{"first", 12, false, false}, {"unchanged", 12, false, true}, {"0.1%", 12, true, true}, {"first v8", 8, false, false}, {"unchanged v8", 8, false, true}} {
		b.Run(c.name, func(b *testing.B) {
			a := manyTopics(10000, 1)
			a.meta.Version = c.version
			bodies := [2][]byte{a.meta.AppendTo(nil)}
			if c.change {
				for i := range 100 { // one partition in each of as many topics
					a.meta.Topics[i*97].Partitions[i%10].LeaderEpoch++
				}
			}
			bodies[1] = a.meta.AppendTo(nil)
			var r Reader
			var prev *Snapshot
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				c1, fault := r.Read(Encoded{c.version, bodies[n%2]}, nil, true, prev, rules)
				if fault != nil {
					b.Fatal(fault)
				}
				if c.keep {
					prev = c1.Snapshot
				}
			}
		})
	}
}
