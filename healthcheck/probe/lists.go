package probe

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Lists lets the probes of a pool share broker lists: a list of each broker's own would take memory in proportion to the
// square of their number, hundreds of megabytes for 2,000. It is for concurrent callers.
type Lists struct {
	mu   sync.Mutex
	last [][]kmsg.MetadataResponseBroker
}

// listsKept is how many different lists are known: while a cluster changes, brokers differ for a moment.
const listsKept = 4

// share returns a list that says the same as brokers, from now on the one that all get. A nil Lists shares nothing.
func (l *Lists) share(brokers []kmsg.MetadataResponseBroker) []kmsg.MetadataResponseBroker {
	if l == nil {
		return brokers
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, known := range l.last {
		if slices.EqualFunc(known, brokers, sameBroker) {
			if i > 0 {
				copy(l.last[1:i+1], l.last[:i])
				l.last[0] = known
			}
			return known
		}
	}
	if len(l.last) < listsKept {
		l.last = append(l.last, nil)
	}
	copy(l.last[1:], l.last)
	l.last[0] = brokers
	return brokers
}

func sameBroker(a, b kmsg.MetadataResponseBroker) bool {
	return a.NodeID == b.NodeID && a.Port == b.Port && a.Host == b.Host &&
		(a.Rack == nil) == (b.Rack == nil) && (a.Rack == nil || *a.Rack == *b.Rack) &&
		a.UnknownTags.Len() == 0 && b.UnknownTags.Len() == 0
}
