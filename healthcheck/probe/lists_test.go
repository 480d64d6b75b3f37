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
	var l Lists
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
	var none *Lists
	if one := list(1, nil); !same(one, none.share(one)) {
		t.Error("nothing is to be shared, and something else is returned")
	}
}
