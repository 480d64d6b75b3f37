package wire

// MetadataRequest is a Metadata request (key 3), versions 0-13, parsed in place. The zero value of each field is what
// older versions mean by leaving it out, but for AutoCreate, which they always mean.
type MetadataRequest struct {
	// All asks for every topic: null from v1 on, an empty list in v0.
	All bool
	// Count is how many topics are named or given by id; 0 with All false asks for brokers only.
	Count int
	// AutoCreate is allow_auto_topic_creation (v4+; before, always true).
	AutoCreate bool
	// ClusterOps (v8-10) and TopicOps (v8+) ask for authorized operations, which depend on who asks.
	ClusterOps, TopicOps bool

	topics  []byte
	version int16
	tags    int
}

// MetadataTopic is one topic of the request.
type MetadataTopic struct {
	// Name aliases the frame; it is nil when null (v10+ gives ids).
	Name []byte
	// ID is zero when the topic is given by name.
	ID [16]byte
}

// Parse reads the body of a Metadata request of a version from 0 to 13 into q. Bytes after the body are ignored, as a
// broker ignores them. (It fills what the caller has, as does TopicIter.Next: returning structures of this size by value
// costs as much as reading them.)
func (q *MetadataRequest) Parse(body []byte, version int16, tagLimit int) Fault {
	*q = MetadataRequest{AutoCreate: true, version: version, tags: tagLimit}
	flexible := version >= 9
	r := reader{b: body}
	n := int64(0)
	if flexible {
		n = int64(int32(r.uvarint()) - 1)
	} else {
		n = int64(r.int32())
	}
	switch {
	case r.bad, n < 0 && version == 0:
		return FaultBody
	case n < 0, n == 0 && version == 0:
		q.All = true
	case n > int64(len(r.b))/minTopic(version):
		return FaultBody // more topics than the bytes left can hold
	default:
		q.Count = int(n)
	}
	q.topics = r.b
	var t MetadataTopic
	for range q.Count {
		t.read(&r, version, tagLimit)
	}
	q.topics = q.topics[:len(q.topics)-len(r.b)]
	if version >= 4 {
		q.AutoCreate = r.bool()
	}
	if version >= 8 && version <= 10 {
		q.ClusterOps = r.bool()
	}
	if version >= 8 {
		q.TopicOps = r.bool()
	}
	if flexible {
		r.tags(tagLimit)
	}
	if r.bad {
		return FaultBody
	}
	return OK
}

// minTopic is the fewest bytes that one topic of a request takes.
func minTopic(version int16) int64 {
	switch {
	case version >= 10:
		return 18 // id, null name, no tags
	default:
		return 2 // an empty name's length, or a compact one's and no tags
	}
}

// TopicIter walks over a parsed request's topics.
type TopicIter struct {
	r       reader
	version int16
	tags    int
}

// Topics returns an iterator; it needs a request that parsed without a fault.
func (q *MetadataRequest) Topics() TopicIter {
	return TopicIter{r: reader{b: q.topics}, version: q.version, tags: q.tags}
}

// Next reads the next topic into t; it returns false after the last.
func (it *TopicIter) Next(t *MetadataTopic) bool {
	if len(it.r.b) == 0 {
		return false
	}
	t.read(&it.r, it.version, it.tags)
	return true
}

func (t *MetadataTopic) read(r *reader, version int16, tags int) {
	*t = MetadataTopic{}
	if version >= 10 {
		copy(t.ID[:], r.take(16))
		t.Name, _ = r.nullable(true)
	} else {
		t.Name = r.str(version >= 9)
	}
	if version >= 9 {
		r.tags(tags)
	}
}
