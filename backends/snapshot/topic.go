package snapshot

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topics are kept as bytes, encoded as Metadata v10-13 encodes them: that is what a broker sends and what most clients are
// sent, so that a refresh compares bytes and decodes only what differs, and nothing is in memory twice.

const (
	// encodedAs is the version whose encoding of a topic a snapshot keeps, and withIDs the first of those that encode it
	// alike.
	encodedAs = 12
	withIDs   = 10
	flexible  = 9
	// nothingAllowed is what a broker says of authorized operations that it was not asked for.
	nothingAllowed = -1 << 31
)

// Topic is one topic of a snapshot, without a topic-level error.
type Topic struct {
	Name string
	// ID is zero where the cluster gives none.
	ID [16]byte
	// Partitions is how many there are, at least one.
	Partitions int32
	raw        []byte
}

// Raw is the topic as Metadata v10-13 encodes it, partitions ascending. Nobody may change it.
func (t *Topic) Raw() []byte { return t.raw }

// Page is some consecutive topics, each as one family of versions encodes it. A snapshot in which little has changed shares
// the pages of the one before it.
type Page struct {
	Bytes []byte
	Ends  []uint32 // where each of its topics ends
}

// PageTopics is how many topics a page holds, but for the last: few enough that one changed topic makes little work, enough
// that an answer of 10,000 topics is some hundreds of parts.
const PageTopics = 32

// Same says whether two pages are one, not only alike.
func (p *Page) Same(q *Page) bool {
	return len(p.Bytes) == len(q.Bytes) && len(p.Bytes) > 0 && &p.Bytes[0] == &q.Bytes[0]
}

// Topic returns the bytes of its topic number at.
func (p *Page) Topic(at int) []byte {
	from := uint32(0)
	if at > 0 {
		from = p.Ends[at-1]
	}
	return p.Bytes[from:p.Ends[at]:p.Ends[at]]
}

// NodeIDs is a list of node ids in place.
type NodeIDs []byte

// Len is how many there are.
func (n NodeIDs) Len() int { return len(n) / 4 }

// At returns number i.
func (n NodeIDs) At(i int) int32 { return int32(binary.BigEndian.Uint32(n[4*i:])) }

func (n NodeIDs) has(id int32) bool {
	for i := range n.Len() {
		if n.At(i) == id {
			return true
		}
	}
	return false
}

// sameSet compares lists that name no node twice.
func (n NodeIDs) sameSet(o NodeIDs) bool {
	if len(n) != len(o) {
		return false
	}
	if bytes.Equal(n, o) {
		return true
	}
	for i := range n.Len() {
		if !o.has(n.At(i)) {
			return false
		}
	}
	return true
}

// Partition is one partition in place.
type Partition struct {
	ErrorCode int16
	Index     int32
	Leader    int32
	// LeaderEpoch is -1 when unknown (Metadata before v7).
	LeaderEpoch            int32
	Replicas, ISR, Offline NodeIDs
	tags                   []byte
}

// cursor walks over a topic's partitions.
type cursor struct {
	b    kbin.Reader
	left int32
	p    Partition
}

func (t *Topic) cursor() (h topicHead, c cursor) {
	c.b.Src = t.raw
	h.read(&c.b, encodedAs)
	c.left = h.partitions
	return h, c
}

// next reads the next partition into p; false when there is none.
func (c *cursor) next() bool {
	if c.left == 0 {
		return false
	}
	c.left--
	c.p.read(&c.b, encodedAs)
	return true
}

// All calls f with each partition, ascending, until f returns false. f may not keep what it is given.
func (t *Topic) All(f func(*Partition) bool) {
	for _, c := t.cursor(); c.next() && f(&c.p); {
	}
}

// Decode decodes the topic into one of the codec's, whose slices are used again.
func (t *Topic) Decode(into *kmsg.MetadataResponseTopic) {
	h, c := t.cursor()
	into.ErrorCode, into.Topic, into.TopicID, into.IsInternal = 0, &t.Name, t.ID, h.internal
	into.Partitions = slices.Grow(into.Partitions[:0], int(h.partitions))[:h.partitions]
	for i := range into.Partitions {
		c.next()
		p, to := &c.p, &into.Partitions[i]
		to.ErrorCode, to.Partition, to.Leader, to.LeaderEpoch = p.ErrorCode, p.Index, p.Leader, p.LeaderEpoch
		to.Replicas, to.ISR = p.Replicas.appendTo(to.Replicas[:0]), p.ISR.appendTo(to.ISR[:0])
		to.OfflineReplicas = p.Offline.appendTo(to.OfflineReplicas[:0])
		to.UnknownTags = kmsg.ReadTags(&kbin.Reader{Src: p.tags})
	}
	into.AuthorizedOperations = c.b.Int32()
	into.UnknownTags = kmsg.ReadTags(&c.b)
}

func (n NodeIDs) appendTo(dst []int32) []int32 {
	for i := range n.Len() {
		dst = append(dst, n.At(i))
	}
	return dst
}

// topicHead is what comes before a topic's partitions.
type topicHead struct {
	errorCode  int16
	name       []byte
	id         [16]byte
	internal   bool
	partitions int32
}

// read reads as the codec does, in place.
func (h *topicHead) read(b *kbin.Reader, version int16) {
	*h = topicHead{errorCode: b.Int16()}
	switch {
	case version >= 12: // may be null
		if n := int(b.Uvarint()) - 1; n >= 0 {
			h.name = b.Span(n)
		}
	case version >= flexible:
		h.name = b.Span(int(b.Uvarint()) - 1)
	default:
		h.name = b.Span(int(b.Int16()))
	}
	if version >= withIDs {
		h.id = b.Uuid()
	}
	if version >= 1 {
		h.internal = b.Bool()
	}
	h.partitions = arrayLen(b, version)
}

// read reads as the codec does, in place.
func (p *Partition) read(b *kbin.Reader, version int16) {
	p.ErrorCode, p.Index, p.Leader, p.LeaderEpoch = b.Int16(), b.Int32(), b.Int32(), -1
	if version >= 7 {
		p.LeaderEpoch = b.Int32()
	}
	p.Replicas, p.ISR, p.Offline, p.tags = nodeIDs(b, version), nodeIDs(b, version), nil, noTags
	if version >= 5 {
		p.Offline = nodeIDs(b, version)
	}
	if version >= flexible {
		p.tags = tags(b)
	}
}

// appendTo encodes the partition as a snapshot keeps it.
func (p *Partition) appendTo(dst []byte) []byte {
	dst = kbin.AppendInt16(dst, p.ErrorCode)
	dst = kbin.AppendInt32(dst, p.Index)
	dst = kbin.AppendInt32(dst, p.Leader)
	dst = kbin.AppendInt32(dst, p.LeaderEpoch)
	for _, ids := range [...]NodeIDs{p.Replicas, p.ISR, p.Offline} {
		dst = kbin.AppendCompactArrayLen(dst, ids.Len())
		dst = append(dst, ids...)
	}
	return append(dst, p.tags...)
}

// arrayLen reads the length of an array; null is 0.
func arrayLen(b *kbin.Reader, version int16) int32 {
	if version >= flexible {
		return max(0, b.CompactArrayLen())
	}
	return max(0, b.ArrayLen())
}

func nodeIDs(b *kbin.Reader, version int16) NodeIDs { return b.Span(4 * int(arrayLen(b, version))) }

var noTags = []byte{0}

// tags returns a section of tagged fields as it is.
func tags(b *kbin.Reader) []byte {
	all := b.Src
	n := b.Uvarint()
	if n == 0 {
		return noTags
	}
	for ; n > 0 && b.Ok(); n-- {
		b.Uvarint()
		b.Span(int(b.Uvarint()))
	}
	if !b.Ok() {
		return noTags
	}
	return all[:len(all)-len(b.Src)]
}

// WrittenVersion is the version of Metadata that WriteMetadata writes.
const WrittenVersion = encodedAs

// WriteMetadata writes the snapshot as a Metadata answer of all topics, without its header, that Read reads again.
func (s *Snapshot) WriteMetadata(w io.Writer) error {
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version, resp.Brokers, resp.ClusterID, resp.ControllerID = WrittenVersion, s.Brokers, &s.ClusterID, s.ControllerID
	empty := resp.AppendTo(nil)
	const count, tail = 1, 1 // of no topics; tags
	head := kbin.AppendCompactArrayLen(empty[:len(empty)-tail-count:len(empty)-tail-count], len(s.Topics))
	if _, err := w.Write(head); err != nil {
		return err
	}
	for i := range s.Pages {
		if _, err := w.Write(s.Pages[i].Bytes); err != nil {
			return err
		}
	}
	_, err := w.Write(empty[len(empty)-tail:])
	return err
}
