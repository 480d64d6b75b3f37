package probe

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Lists lets the probes of a pool share what their brokers say: a broker list and an ApiVersions table of each broker's
// own would take memory in proportion to the square of their number, hundreds of megabytes for 2,000, and be decoded in
// each probe. It is for concurrent callers.
type Lists struct {
	mu     sync.Mutex
	last   []*listing
	tables []*table
}

// listsKept is how many different lists and tables are known: while a cluster changes, brokers differ for a moment.
const listsKept = 4

// read is readListing, which it does once for all brokers that say the same. A nil Lists shares nothing.
func (l *Lists) read(version int16, body []byte) (*listing, error) {
	if l == nil {
		return readListing(version, body)
	}
	l.mu.Lock()
	for i, known := range l.last {
		if again := known.repeated(version, body); again != nil {
			first(l.last, i)
			l.mu.Unlock()
			return again, nil
		}
	}
	l.mu.Unlock()
	list, err := readListing(version, body)
	if err != nil {
		return nil, err
	}
	list.brokers = l.share(list)
	return list, nil
}

// share returns a list that says the same as that of next, from now on the one that all get.
func (l *Lists) share(next *listing) []kmsg.MetadataResponseBroker {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, known := range l.last {
		if slices.EqualFunc(known.brokers, next.brokers, sameBroker) {
			l.last[i] = &listing{print: next.print, clusterID: next.clusterID, brokers: known.brokers, self: AnyNode}
			first(l.last, i)
			return known.brokers
		}
	}
	l.last = keep(l.last, &listing{print: next.print, clusterID: next.clusterID, brokers: next.brokers, self: AnyNode})
	return next.brokers
}

// table returns a table of the same bytes, nil when there is none.
func (l *Lists) table(version int16, body []byte) *table {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, t := range l.tables {
		if t.says(version, body) {
			first(l.tables, i)
			return t
		}
	}
	return nil
}

// shareTable returns a table of the same bytes as t, from now on the one that all get.
func (l *Lists) shareTable(t *table) *table {
	if l == nil {
		return t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, known := range l.tables {
		if known.says(t.version, t.body) {
			return known
		}
	}
	l.tables = keep(l.tables, t)
	return t
}

// first moves one to the front.
func first[T any](of []T, i int) {
	one := of[i]
	copy(of[1:i+1], of[:i])
	of[0] = one
}

// keep puts one in front and forgets the last where there are too many.
func keep[T any](of []T, one T) []T {
	of = append(of, one)
	first(of, len(of)-1)
	return of[:min(len(of), listsKept)]
}

func sameBroker(a, b kmsg.MetadataResponseBroker) bool {
	return a.NodeID == b.NodeID && a.Port == b.Port && a.Host == b.Host &&
		(a.Rack == nil) == (b.Rack == nil) && (a.Rack == nil || *a.Rack == *b.Rack)
}
