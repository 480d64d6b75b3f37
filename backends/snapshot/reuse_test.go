package snapshot

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// everything is all that a snapshot says, as bytes.
func everything(s *Snapshot) []byte {
	var b bytes.Buffer
	_ = s.WriteMetadata(&b)
	desc := kmsg.DescribeClusterResponse{Version: 2, ClusterID: s.ClusterID, Brokers: s.Described}
	b.Write(desc.AppendTo(nil))
	for i := range s.Topics {
		fmt.Fprintf(&b, "%s %x %d %x\n", s.Topics[i].Name, s.Topics[i].ID, s.Topics[i].Partitions, s.Topics[i].Raw())
	}
	return b.Bytes()
}

// Answers are read into one buffer again and again while older views are still written to slow clients: nothing of a view
// may refer to the buffer, and no view may change when the next is made of it.
func TestAViewOutlivesTheBufferThatItWasReadFrom(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	a := manyTopics(200, 1)
	tagged := func(what string) (tags kmsg.Tags) {
		tags.Set(9, []byte(what))
		return tags
	}
	for i := range a.meta.Brokers {
		a.meta.Brokers[i].UnknownTags = tagged(fmt.Sprintf("broker %d", i))
		a.desc.Brokers[i].UnknownTags = tagged(fmt.Sprintf("described %d", i))
	}
	for i := range a.meta.Topics {
		a.meta.Topics[i].UnknownTags = tagged(fmt.Sprintf("topic %d", i))
		a.meta.Topics[i].Partitions[0].UnknownTags = tagged(fmt.Sprintf("partition of %d", i))
	}
	type kept struct {
		view *Snapshot
		said []byte
	}
	var views []kept
	var r Reader
	var prev *Snapshot
	var meta, desc []byte
	for round := range 40 {
		ts := &a.meta.Topics
		at := rng.IntN(len(*ts))
		switch round % 8 {
		case 1: // a page is patched
			(*ts)[at].Partitions[0].LeaderEpoch++
		case 2:
			*ts = slices.Delete(*ts, at, at+1)
		case 3:
			a.topic(fmt.Sprintf("topic-%06d-%d", at, round), byte(round), 3)
		case 4: // deleted and made again, of the same size
			(*ts)[at].TopicID = [16]byte{0xee, byte(round)}
		case 5: // another name, the same id
			(*ts)[at].Topic = kmsg.StringPtr(fmt.Sprintf("renamed-%d", round))
		case 6: // another order
			rng.Shuffle(len(*ts), func(i, j int) { (*ts)[i], (*ts)[j] = (*ts)[j], (*ts)[i] })
		case 7:
			a.desc.Brokers[0].UnknownTags = tagged(fmt.Sprint("described ", round))
			a.desc.Brokers[1].IsFenced = !a.desc.Brokers[1].IsFenced
		}
		meta, desc = a.meta.AppendTo(meta[:0]), a.desc.AppendTo(desc[:0])
		c, fault := r.Read(Encoded{12, meta}, &Encoded{2, desc}, true, prev, rules)
		if fault != nil {
			t.Fatal(fault)
		}
		if err := compare(c, 12, meta); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		prev = c.Snapshot
		views = append(views, kept{prev, everything(prev)})
		for _, buf := range [][]byte{meta, desc} {
			for i := range buf {
				buf[i] = 0xAA
			}
		}
		for i, v := range views {
			if !bytes.Equal(everything(v.view), v.said) {
				t.Fatalf("round %d: the view of round %d has changed", round, i)
			}
		}
	}
}

// A topic that has another name now keeps its id: it is not one that is over, whichever name comes first.
func TestAnIDUnderAnotherNameIsNotRetired(t *testing.T) {
	for _, name := range []string{"aaa", "zzz"} {
		a := sound()
		was := a.read(t).Snapshot
		a.of("orders").Topic = kmsg.StringPtr(name)
		is := a.read(t).Snapshot
		var retired Retired
		retired.Replace(was, is)
		if retired.Has(is.Topic(name).ID) {
			t.Errorf("orders became %q, and its id counts as over", name)
		}
	}
}
