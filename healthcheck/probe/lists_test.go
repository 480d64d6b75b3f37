package probe

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestListsAreShared(t *testing.T) {
	list := func(port int32, rack *string) []kmsg.MetadataResponseBroker {
		return []kmsg.MetadataResponseBroker{{NodeID: 1, Host: fmt.Sprint("b", 1), Port: port, Rack: rack}, {NodeID: 2, Host: "b2", Port: 9092}}
	}
	var l sharer
	same := func(a, b []kmsg.MetadataResponseBroker) bool { return &a[0] == &b[0] }
	first := l.share(list(9092, kmsg.StringPtr("r1")))
	if !same(first, l.share(list(9092, kmsg.StringPtr("r1")))) {
		t.Error("what says the same is not shared")
	}
	for i, other := range [][]kmsg.MetadataResponseBroker{list(9093, kmsg.StringPtr("r1")), list(9092, kmsg.StringPtr("r2")), list(9092, nil)} {
		if same(first, l.share(other)) || !same(other, l.share(other)) {
			t.Errorf("list %d is taken for another", i)
		}
	}
	if !same(first, l.share(list(9092, kmsg.StringPtr("r1")))) {
		t.Error("of four lists the first is forgotten")
	}
	for port := range int32(100) {
		l.share(list(port, nil))
	}
	if n := len(l.last); n != listsKept {
		t.Errorf("%d lists are kept, want %d", n, listsKept)
	}
}

// A list is kept while the next answer is read into the buffer that it came in.
func TestAListRefersToNoBuffer(t *testing.T) {
	answer := kmsg.NewPtrMetadataResponse()
	answer.Version = 13
	answer.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "b"}}
	answer.Brokers[0].UnknownTags.Set(7, []byte("of a broker"))
	body := answer.AppendTo(nil)
	l, err := readListing(answer.Version, body)
	if err != nil {
		t.Fatal(err)
	}
	if n := l.brokers[0].UnknownTags.Len(); n != 0 {
		t.Errorf("%d tags are slices of the answer", n)
	}
	if l.repeated(answer.Version, body) == nil {
		t.Error("the same answer is not known again")
	}
}

type sharer struct{ Lists }

func (s *sharer) share(brokers []kmsg.MetadataResponseBroker) []kmsg.MetadataResponseBroker {
	return s.Lists.share(&listing{brokers: brokers})
}

// A broker that says the same again, or what another one has said, is understood by a sum of its bytes, in every version;
// only the controller may differ.
func TestAnswersThatSayTheSameAreNotReadAgain(t *testing.T) {
	for version := int16(1); version <= 13; version++ {
		answer := kmsg.NewPtrMetadataResponse()
		answer.Version, answer.ControllerID, answer.ClusterID = version, 1, kmsg.StringPtr("A")
		for id := range int32(3) {
			answer.Brokers = append(answer.Brokers, kmsg.MetadataResponseBroker{NodeID: id + 1, Host: "b", Port: 9092 + id, Rack: kmsg.StringPtr("a")})
		}
		var l Lists
		read := func(change func()) *listing {
			t.Helper()
			change()
			list, err := l.read(version, answer.AppendTo(nil))
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		before := read(func() {})
		again := read(func() { answer.ControllerID = 0x03000002 })
		if &before.brokers[0] != &again.brokers[0] || again.controller != 0x03000002 || before.controller != 1 || version > 1 && again.clusterID != "A" {
			t.Errorf("v%d: %+v, then %+v", version, before, again)
		}
		if n := len(l.last); n != 1 || before.repeated(version, answer.AppendTo(nil)) == nil {
			t.Errorf("v%d: %d lists are kept, and the one is not known again", version, n)
		}
		for name, change := range map[string]func(){
			"a host": func() { answer.Brokers[1].Host = "c" },
			"a port": func() { answer.Brokers[2].Port++ },
			"a rack": func() { answer.Brokers[0].Rack = kmsg.StringPtr("b") },
			"broker": func() {
				answer.Brokers = append(answer.Brokers, kmsg.MetadataResponseBroker{NodeID: 100 + int32(len(answer.Brokers)), Host: "d"})
			},
			"cluster": func() { answer.ClusterID = kmsg.StringPtr("B") },
		} {
			last := read(func() {})
			next := read(change)
			same := &last.brokers[0] == &next.brokers[0] && last.clusterID == next.clusterID
			if said := name != "cluster" || version > 1; same == said {
				t.Errorf("v%d: another %s: %+v, then %+v", version, name, last, next)
			}
		}
	}
}
