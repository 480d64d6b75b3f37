package snapshot

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
)

// Encoded is the body of an answer, without its header.
type Encoded struct {
	Version int16
	Body    []byte
}

// Reader reads brokers' answers. A topic whose bytes are those of the view so far is known by them and not decoded, and
// neither is a broker list that was read before; scratch is kept from one answer to the next. The zero value is ready. It
// is not safe for concurrent use.
type Reader struct {
	// follows has, for each topic of a view with this index, the one that a broker listed after it, and last the first
	// one: brokers list topics in an order of their own, and the same one again and again.
	follows []int32
	first   int32
	of      *index

	brokers   brokerList
	described describedList

	// Scratch for one answer: what became of each topic of the view so far, the topics that differ from it, and the new
	// list of topics in the end.
	slots    []int32
	changed  []change
	fresh    []int32 // of changed, those that prev does not have, ascending by name
	merged   []int32
	canon    []byte
	sortable []byte
	parts    []part
}

// What a slot says of a topic of the view so far: not listed, listed as it is, or changed[slot-slotChanged].
const (
	slotMissing int32 = iota
	slotSame
	slotChanged
)

// change is a topic that is new or not as it was.
type change struct {
	name       []byte // in the answer
	id         [16]byte
	partitions int32
	raw        []byte // in the answer where that is encoded as a snapshot is, else in canon
	at         int32  // in the view so far, -1 when it is not in there
}

// part is where one partition is in canon.
type part struct {
	index    int32
	from, to int
}

// keptScratch bounds the bytes, and keptChanges the topics, for which scratch is kept: a first answer needs megabytes, the
// later ones little.
const keptScratch, keptChanges = 256 << 10, 4096

// Read makes a candidate of one broker's answers: Metadata for all topics and, where the cluster has it, DescribeCluster
// (else nil). kraft says which kind of controller id they have. prev, the view so far or nil, supplies the controller
// where the broker knows none, and whatever has not changed: a candidate that is prev in everything has prev for its
// snapshot. Nothing of the bodies is kept. The rules have to be the same each time.
func (r *Reader) Read(meta Encoded, desc *Encoded, kraft bool, prev *Snapshot, rules Rules) (*Candidate, *Fault) {
	defer r.release()
	m, fault := r.metadata(meta, prev)
	if fault != nil {
		return nil, fault
	}
	if desc != nil {
		if err := r.described.read(*desc); err != nil {
			return nil, faultf(Malformed, "DescribeCluster v%d: %v", desc.Version, err)
		}
	}
	if fault := r.brokers.check(&m, rules); fault != nil {
		return nil, fault
	}
	s := &Snapshot{ClusterID: rules.ClusterID, KRaft: kraft, Brokers: r.brokers.list}
	s.ControllerID = controller(s, m.controller, prev)
	if desc != nil {
		if fault := r.described.check(rules); fault != nil {
			return nil, fault
		}
		s.Described = r.described.list
	}
	if m.fault != nil {
		return nil, m.fault
	}
	if fault := r.sortTopics(prev, m.errored); fault != nil {
		return nil, fault
	}
	s.HasTopicIDs = m.ids || m.topics == 0 && meta.Version >= withIDs // nothing to tell by: Metadata has had ids since v10
	c := &Candidate{Snapshot: s, Errored: m.errored}
	if prev != nil && r.unchanged(prev) && sameButTopics(prev, s) {
		c.Snapshot = prev
	} else {
		r.build(s, prev)
	}
	return c, nil
}

// release gives large scratch back.
func (r *Reader) release() {
	clear(r.changed) // they hold on to the answer
	if cap(r.canon) > keptScratch {
		r.canon, r.sortable = nil, nil
	}
	if cap(r.changed) > keptChanges {
		r.changed, r.fresh, r.parts = nil, nil, nil
	}
}

func twice(name string) *Fault {
	return faultf(Malformed, "the topic %q is listed without a name or twice", name)
}

// answered is what a Metadata answer has besides its brokers and sound topics.
type answered struct {
	errorCode  int16
	controller int32
	topics     int32
	ids        bool
	errored    []string
	fault      *Fault // the first of the topics'
}

func (a *answered) fail(f *Fault) {
	if a.fault == nil {
		a.fault = f
	}
}

// metadata walks over an answer and fills in slots and changed.
func (r *Reader) metadata(meta Encoded, prev *Snapshot) (answered, *Fault) {
	a := answered{controller: -1}
	b := kbin.Reader{Src: meta.Body}
	if meta.Version >= 3 {
		b.Int32() // throttle time
	}
	head := b.Src
	for n := arrayLen(&b, meta.Version); n > 0 && b.Ok(); n-- {
		b.Int32()
		text(&b, meta.Version, false)
		b.Int32()
		if meta.Version >= 1 {
			text(&b, meta.Version, true)
		}
		if meta.Version >= flexible {
			tags(&b)
		}
	}
	if meta.Version >= 2 {
		text(&b, meta.Version, true)
	}
	head = head[:len(head)-len(b.Src)]
	if meta.Version >= 1 {
		a.controller = b.Int32()
	}
	a.topics = arrayLen(&b, meta.Version)
	r.topics(&b, meta.Version, &a, prev)
	if meta.Version >= 8 && meta.Version <= 10 {
		b.Int32() // authorized operations
	}
	if meta.Version >= 13 {
		a.errorCode = b.Int16()
	}
	if meta.Version >= flexible {
		tags(&b)
	}
	err := b.Complete()
	if err == nil {
		err = r.brokers.read(meta.Version, head)
	}
	if err != nil {
		return a, faultf(Malformed, "Metadata v%d: %v", meta.Version, err)
	}
	return a, nil
}

// text reads a string.
func text(b *kbin.Reader, version int16, nullable bool) []byte {
	n := 0
	if version >= flexible {
		n = int(b.Uvarint()) - 1
	} else {
		n = int(b.Int16())
	}
	if n < 0 && nullable {
		return nil
	}
	return b.Span(n)
}

// topics walks over the topics.
func (r *Reader) topics(b *kbin.Reader, version int16, a *answered, prev *Snapshot) {
	r.changed, r.canon = r.changed[:0], r.canon[:0]
	var view []Topic
	var ix *index
	if prev != nil {
		view, ix = prev.Topics, prev.index
	}
	r.slots = slices.Grow(r.slots[:0], len(view))[:len(view)]
	clear(r.slots)
	if r.of != ix || len(r.follows) != len(view) {
		r.of, r.first = ix, 0
		r.follows = slices.Grow(r.follows[:0], len(view))[:len(view)]
		for i := range r.follows {
			r.follows[i] = int32(i) + 1
		}
	}
	// A topic is as it was when its bytes are: the encoding says by itself where it ends.
	same := func(i int32) bool {
		return version >= withIDs && bytes.HasPrefix(b.Src, view[i].raw)
	}
	next, hint := r.first, &r.first
	for n := a.topics; n > 0 && b.Ok(); n-- {
		i := next
		if int(i) >= len(view) || !same(i) {
			at := *b
			var h topicHead
			h.read(&at, version)
			if !at.Ok() {
				*b = at
				return
			}
			var known bool
			if i, known = prev.Find(h.name); !known || r.slots[i] != slotMissing || !same(i) {
				if !known {
					i = -1
				}
				before := b.Src
				*b = at
				r.differs(b, version, before, &h, i, a, prev)
				if i >= 0 {
					*hint, hint, next = i, &r.follows[i], r.follows[i]
				}
				continue
			}
		} else if r.slots[i] != slotMissing {
			a.fail(twice(view[i].Name))
		}
		r.slots[i] = slotSame
		a.ids = a.ids || view[i].ID != [16]byte{}
		b.Src = b.Src[len(view[i].raw):]
		*hint, hint, next = i, &r.follows[i], r.follows[i]
	}
}

// differs reads a topic, after its head, that is not the view's topic number at, or that the view does not have (-1). It
// begins where before does.
func (r *Reader) differs(b *kbin.Reader, version int16, before []byte, h *topicHead, at int32, a *answered, prev *Snapshot) {
	c := change{name: h.name, id: h.id, partitions: h.partitions, at: at}
	from := len(r.canon)
	r.canon = kbin.AppendInt16(r.canon, 0)
	r.canon = kbin.AppendCompactArrayLen(r.canon, len(h.name))
	r.canon = append(r.canon, h.name...)
	r.canon = append(r.canon, h.id[:]...)
	r.canon = kbin.AppendBool(r.canon, h.internal)
	r.canon = kbin.AppendCompactArrayLen(r.canon, int(h.partitions))
	bad := r.partitions(b, version, h.partitions)
	allowed := int32(nothingAllowed)
	if version >= 8 {
		allowed = b.Int32()
	}
	tagged := noTags
	if version >= flexible {
		tagged = tags(b)
	}
	r.canon = append(kbin.AppendInt32(r.canon, allowed), tagged...)
	c.raw = r.canon[from:len(r.canon):len(r.canon)]
	if bytes.HasPrefix(before, c.raw) {
		c.raw, r.canon = before[:len(c.raw):len(c.raw)], r.canon[:from]
	}
	switch {
	case !b.Ok():
	case len(h.name) == 0:
		a.fail(twice(""))
	case h.errorCode != 0 || h.partitions == 0:
		a.errored = append(a.errored, string(h.name))
	case bad != nil:
		a.fail(faultf(Malformed, "topic %q has partition %d twice, or below 0", h.name, *bad))
	case at >= 0 && r.slots[at] != slotMissing:
		a.fail(twice(string(h.name)))
	default:
		a.ids = a.ids || h.id != [16]byte{}
		if at >= 0 && bytes.Equal(c.raw, prev.Topics[at].raw) {
			r.slots[at], r.canon = slotSame, r.canon[:from] // it was encoded otherwise
			return
		}
		if at >= 0 {
			r.slots[at] = slotChanged + int32(len(r.changed))
		}
		r.changed = append(r.changed, c)
	}
}

// partitions appends n partitions to canon, ascending, and returns the index of one that is listed twice or negative.
func (r *Reader) partitions(b *kbin.Reader, version int16, n int32) (bad *int32) {
	r.parts = r.parts[:0]
	start, ascending := len(r.canon), true
	var p Partition
	for last := int32(-1); n > 0 && b.Ok(); n-- {
		p.read(b, version)
		from := len(r.canon)
		r.canon = p.appendTo(r.canon)
		r.parts = append(r.parts, part{p.Index, from, len(r.canon)})
		ascending = ascending && p.Index > last
		last = p.Index
	}
	if ascending || !b.Ok() {
		return nil
	}
	slices.SortFunc(r.parts, func(a, b part) int { return cmp.Compare(a.index, b.index) })
	r.sortable = append(r.sortable[:0], r.canon[start:]...)
	to := r.canon[:start]
	for i, p := range r.parts {
		if p.index < 0 || i > 0 && r.parts[i-1].index == p.index {
			bad = &r.parts[i].index
		}
		to = append(to, r.sortable[p.from-start:p.to-start]...)
	}
	r.canon = to
	return bad
}

// unchanged says that the topics are those of prev, as they were.
func (r *Reader) unchanged(prev *Snapshot) bool {
	return len(r.merged) == len(prev.Topics) && len(r.changed) == 0
}

// sortTopics merges the topics that are as they were with those that are not, ascending by name, into merged: numbers in
// prev, or ^numbers in changed. It sorts errored, and refuses a name that is there twice.
func (r *Reader) sortTopics(prev *Snapshot, errored []string) *Fault {
	r.fresh = r.fresh[:0]
	for k := range r.changed {
		if r.changed[k].at < 0 {
			r.fresh = append(r.fresh, ^int32(k))
		}
	}
	name := func(i int32) []byte { return r.changed[^i].name }
	slices.SortFunc(r.fresh, func(a, b int32) int { return bytes.Compare(name(a), name(b)) })
	fresh := r.fresh
	for i := range fresh {
		if i > 0 && bytes.Equal(name(fresh[i-1]), name(fresh[i])) {
			return twice(string(name(fresh[i])))
		}
	}
	slices.Sort(errored)
	for i, e := range errored {
		_, sound := slices.BinarySearchFunc(fresh, []byte(e), func(i int32, e []byte) int { return bytes.Compare(name(i), e) })
		if at, ok := prev.Find([]byte(e)); ok {
			sound = r.slots[at] != slotMissing
		}
		if sound || i > 0 && errored[i-1] == e {
			return twice(e)
		}
	}
	r.merged = r.merged[:0]
	for i, slot := range r.slots {
		for len(fresh) > 0 && string(name(fresh[0])) < prev.Topics[i].Name {
			r.merged, fresh = append(r.merged, fresh[0]), fresh[1:]
		}
		switch {
		case slot == slotSame:
			r.merged = append(r.merged, int32(i))
		case slot >= slotChanged:
			r.merged = append(r.merged, ^(slot - slotChanged))
		}
	}
	r.merged = append(r.merged, fresh...)
	return nil
}

// build gives s its topics: pages in which nothing has changed are prev's, the others new.
func (r *Reader) build(s, prev *Snapshot) {
	n := len(r.merged)
	s.Topics = make([]Topic, n)
	s.Pages = make([]Page, 0, (n+PageTopics-1)/PageTopics)
	names := prev != nil && len(prev.Topics) == n // whether names and ids are prev's, in the same places
	for first := 0; first < n; first += PageTopics {
		last := min(first+PageTopics, n)
		if r.isPage(prev, first, last) {
			copy(s.Topics[first:last], prev.Topics[first:last])
			s.Pages = append(s.Pages, prev.Pages[first/PageTopics])
			continue
		}
		if p, ids, ok := r.patch(s.Topics[first:last], prev, first, last); ok {
			s.Pages = append(s.Pages, p)
			names = names && ids
			continue
		}
		size := 0
		for _, i := range r.merged[first:last] {
			size += len(r.raw(i, prev))
		}
		p := Page{Bytes: make([]byte, 0, size), Ends: make([]uint32, 0, last-first)}
		for at := first; at < last; at++ {
			i := r.merged[at]
			t := &s.Topics[at]
			from := len(p.Bytes)
			p.Bytes = append(p.Bytes, r.raw(i, prev)...)
			p.Ends = append(p.Ends, uint32(len(p.Bytes)))
			if i >= 0 {
				*t = prev.Topics[i]
				names = names && int(i) == at
			} else {
				c := &r.changed[^i]
				t.ID, t.Partitions = c.id, c.partitions
				if c.at >= 0 {
					t.Name = prev.Topics[c.at].Name
				} else {
					t.Name = string(c.name)
				}
				names = names && int(c.at) == at && t.ID == prev.Topics[at].ID
			}
			t.raw = p.Bytes[from:len(p.Bytes):len(p.Bytes)]
		}
		s.Pages = append(s.Pages, p)
	}
	for i := range s.Topics {
		s.Partitions += int(s.Topics[i].Partitions)
	}
	if names {
		s.index = prev.index
	} else {
		s.index = newIndex(s.Topics)
	}
}

// patch makes the page of the topics from first to last by copying prev's and writing over what has changed: whole topics of
// the same size, as a new leader or epoch leaves them. ids says whether they have the ids that they had.
func (r *Reader) patch(ts []Topic, prev *Snapshot, first, last int) (p Page, ids, ok bool) {
	if prev == nil || min(first+PageTopics, len(prev.Topics)) != last {
		return p, false, false
	}
	for at := first; at < last; at++ {
		if i := r.merged[at]; i < 0 {
			if c := &r.changed[^i]; int(c.at) != at || len(c.raw) != len(prev.Topics[at].raw) {
				return p, false, false
			}
		} else if int(i) != at {
			return p, false, false
		}
	}
	was := &prev.Pages[first/PageTopics]
	p, ids = Page{Bytes: append([]byte(nil), was.Bytes...), Ends: was.Ends}, true
	copy(ts, prev.Topics[first:last])
	for at := range ts {
		t := &ts[at]
		t.raw = p.Topic(at)
		if i := r.merged[first+at]; i < 0 {
			c := &r.changed[^i]
			copy(t.raw, c.raw)
			ids = ids && t.ID == c.id
			t.ID, t.Partitions = c.id, c.partitions
		}
	}
	return p, ids, true
}

// isPage says whether the topics from first to last are a whole page of prev.
func (r *Reader) isPage(prev *Snapshot, first, last int) bool {
	if prev == nil || min(first+PageTopics, len(prev.Topics)) != last {
		return false
	}
	for at := first; at < last; at++ {
		if int(r.merged[at]) != at {
			return false
		}
	}
	return true
}

// raw is the encoding of one of merged.
func (r *Reader) raw(i int32, prev *Snapshot) []byte {
	if i >= 0 {
		return prev.Topics[i].raw
	}
	return r.changed[^i].raw
}
