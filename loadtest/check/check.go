// Package check judges answers: not that something came back, but that a client could live on it. Whole answers are
// judged once: the next one with the same bytes gets the same verdict for the price of a hash.
package check

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"maps"
	"net"
	"strconv"
	"time"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
)

// Bounds of what a Checker keeps before it starts anew. Brokers name a random controller in each answer, so that a few
// different ones per request are normal.
const (
	maxViews      = 512
	maxPartitions = 2 << 20
)

// Expect is what every answer must satisfy.
type Expect struct {
	ClusterID string // "": whatever a connection's first answer says
	// EpochGrace is how long after one client has seen an epoch another one may still be told an older one: brokers learn of
	// a new leader one after the other. 0: not at all, as befits a target that answers from one place.
	EpochGrace time.Duration
	// TopicErrors, when set, lets errors of topics pass, as a run that asks for unknown names needs.
	TopicErrors bool
	// Facts has views say what [Truth] can be asked about.
	Facts bool
	// withoutEpochs adds to the facts what the same answer would say in a version that has no epochs.
	withoutEpochs bool
}

// Checker judges the answers of one loop. Not for concurrent use.
type Checker struct {
	expect  Expect
	seed    maphash.Seed
	views   map[viewKey]*View
	ranges  map[viewKey]*Ranges
	epochs  map[uint64]*epochs // by fingerprint
	compare map[[2]*epochs]verdict
	held    int // partitions in epochs
	scratch kafka.Metadata

	// The newest epochs that any client has been told, when, and of which cluster.
	newest        *epochs
	newestAt      time.Duration
	newestCluster string
}

type viewKey struct {
	api, version int16
	topics       int    // how many the request named; -1: all
	group        string // that the request named
	size         int
	hash         uint64
}

// New returns a checker.
func New(expect Expect) *Checker {
	k := &Checker{expect: expect, seed: maphash.MakeSeed()}
	k.forget()
	return k
}

func (k *Checker) forget() {
	k.views, k.ranges = map[viewKey]*View{}, map[viewKey]*Ranges{}
	k.epochs, k.compare, k.held = map[uint64]*epochs{}, map[[2]*epochs]verdict{}, 0
}

// View is one answer, to anything but ApiVersions, judged. It is shared and never changed.
type View struct {
	Fault           failure.Class // what is wrong with the answer on its own
	Detail          string
	ClusterID       string   // "": the version does not say
	PartitionErrors int      // partitions with an error code: the truth while brokers are down, so no fault by itself
	Brokers         []string // host:port of each, as advertised
	// CoordinatorErrors counts groups that have no coordinator yet: likewise.
	CoordinatorErrors int

	epochs *epochs // nil: not Metadata
	facts  []fact
	held   held // the truth's
}

// epochs are an answer's leader epochs, shared by all answers that say the same ones.
type epochs struct{ of map[partition]int32 }

// verdict is what two views come to: what is wrong when the second follows the first, else the newest epochs of both.
type verdict struct {
	class  failure.Class
	detail string
	newest *epochs
}

// partition names a partition across answers: by topic id where the version has it, for a new id is a new topic.
type partition struct {
	id    [16]byte
	name  string
	index int32
}

// Ranges is one ApiVersions answer, judged.
type Ranges struct {
	Fault  failure.Class
	Detail string
	kafka.APIVersions
}

// APIVersions judges an answer's body.
func (k *Checker) APIVersions(version int16, body []byte) *Ranges {
	key := viewKey{api: kafka.KeyAPIVersions, version: version, size: len(body), hash: maphash.Bytes(k.seed, body)}
	if r := k.ranges[key]; r != nil {
		return r
	}
	r := &Ranges{}
	switch err := r.Decode(version, body); {
	case err != nil:
		r.Fault, r.Detail = bodyFault(err), err.Error()
	case r.ErrorCode != 0:
		r.Fault, r.Detail = failure.ErrorCode, fmt.Sprintf("ApiVersions v%d: error %d", version, r.ErrorCode)
	case len(r.Keys) == 0:
		r.Fault, r.Detail = failure.Malformed, fmt.Sprintf("ApiVersions v%d: no api key", version)
	}
	if len(k.ranges) >= maxViews {
		k.forget()
	}
	k.ranges[key] = r
	return r
}

// Metadata judges an answer's body against what was asked: the number of topics named, -1 for all of them.
func (k *Checker) Metadata(version int16, topics int, body []byte) *View {
	key := viewKey{api: kafka.KeyMetadata, version: version, topics: topics}
	return k.view(key, body, func() *View { return k.judge(version, topics, body) })
}

// view judges an answer unless one of the same bytes has been judged.
func (k *Checker) view(key viewKey, body []byte, judge func() *View) *View {
	key.size, key.hash = len(body), maphash.Bytes(k.seed, body)
	if v := k.views[key]; v != nil {
		return v
	}
	v := judge()
	if len(k.views) >= maxViews || k.held > maxPartitions {
		k.forget()
	}
	k.views[key] = v
	return v
}

func (k *Checker) judge(version int16, topics int, body []byte) *View {
	m, v := &k.scratch, &View{}
	if err := m.Decode(version, body); err != nil {
		v.Fault, v.Detail = bodyFault(err), err.Error()
		return v
	}
	v.ClusterID, v.Brokers = string(m.ClusterID), addresses(m.Brokers)
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				v.PartitionErrors++
			}
		}
	}
	v.epochs = k.intern(m)
	if k.expect.Facts {
		v.facts = metadataFacts(m, version, topics)
		if k.expect.withoutEpochs {
			v.facts = append(v.facts, leadersAlone(m)...)
		}
	}
	v.Fault, v.Detail = k.fault(m, version, topics)
	return v
}

func addresses(brokers []kafka.Broker) []string {
	var all []string
	for _, b := range brokers {
		all = append(all, net.JoinHostPort(string(b.Host), strconv.Itoa(int(b.Port))))
	}
	return all
}

// intern returns the answer's epochs, the same pointer for the same epochs whatever order the answer lists them in.
func (k *Checker) intern(m *kafka.Metadata) *epochs {
	of := map[partition]int32{}
	for _, t := range m.Topics {
		name := string(t.Name)
		for _, p := range t.Partitions {
			if p.LeaderEpoch >= 0 {
				of[partition{t.ID, name, p.Index}] = p.LeaderEpoch
			}
		}
	}
	return k.internEpochs(of)
}

func (k *Checker) internEpochs(of map[partition]int32) *epochs {
	type entry struct {
		partition
		epoch int32
	}
	fingerprint := uint64(0)
	for p, epoch := range of {
		fingerprint += maphash.Comparable(k.seed, entry{p, epoch})
	}
	if e := k.epochs[fingerprint]; e != nil {
		return e
	}
	e := &epochs{of}
	k.epochs[fingerprint] = e
	k.held += len(of)
	return e
}

func (k *Checker) fault(m *kafka.Metadata, version int16, topics int) (failure.Class, string) {
	if m.ErrorCode != 0 {
		return failure.ErrorCode, fmt.Sprintf("Metadata v%d: error %d", version, m.ErrorCode)
	}
	if class, detail := k.clusterFault(fmt.Sprintf("Metadata v%d", version), m.Brokers, m.ClusterID, version >= 2); class != failure.None {
		return class, detail
	}
	if topics >= 0 && len(m.Topics) != topics {
		return failure.MissingTopic, fmt.Sprintf("Metadata v%d: %d topics, asked for %d", version, len(m.Topics), topics)
	}
	for _, t := range m.Topics {
		if t.ErrorCode != 0 && !k.expect.TopicErrors {
			return failure.ErrorCode, fmt.Sprintf("Metadata v%d: error %d for topic %q", version, t.ErrorCode, t.Name)
		}
	}
	return failure.None, ""
}

// clusterFault judges what Metadata and DescribeCluster have in common.
func (k *Checker) clusterFault(what string, brokers []kafka.Broker, cluster []byte, named bool) (failure.Class, string) {
	if len(brokers) == 0 {
		return failure.EmptyList, what + ": no broker"
	}
	for i, b := range brokers {
		if len(b.Host) == 0 || b.Port < 1 || b.Port > 65535 {
			return failure.Malformed, fmt.Sprintf("%s: broker %d is at %q port %d", what, b.NodeID, b.Host, b.Port)
		}
		for _, c := range brokers[:i] {
			if c.NodeID == b.NodeID {
				return failure.Malformed, fmt.Sprintf("%s: broker %d is listed twice", what, b.NodeID)
			}
		}
	}
	if k.expect.ClusterID != "" && named && !bytes.Equal(cluster, []byte(k.expect.ClusterID)) {
		return failure.WrongCluster, fmt.Sprintf("%s: cluster %q, expected %q", what, cluster, k.expect.ClusterID)
	}
	return failure.None, ""
}

// bodyFault tells a body that ends too early from one that says nonsense.
func bodyFault(err error) failure.Class {
	if kafka.IsShort(err) {
		return failure.Short
	}
	return failure.Malformed
}

// Memory is what one client has been told so far. A client keeps it over reconnects; NewConnection forgets what holds for
// one connection only.
type Memory struct {
	cluster   string
	connected bool // cluster is this connection's
	last      *epochs
}

// NewConnection begins a connection: another cluster than the last one's is allowed from here on.
func (m *Memory) NewConnection() { m.connected = false }

// Accept judges a view that is sound on its own against what this client was told before.
func (k *Checker) Accept(m *Memory, v *View) (failure.Class, string) {
	if v.ClusterID != "" {
		if m.connected && m.cluster != v.ClusterID {
			return failure.WrongCluster, fmt.Sprintf("cluster %q on a connection that began with %q", v.ClusterID, m.cluster)
		}
		if m.cluster != v.ClusterID {
			m.last = nil // another cluster's epochs say nothing
		}
		m.cluster, m.connected = v.ClusterID, true
	}
	switch {
	case v.epochs == nil:
		return failure.None, ""
	case m.last == nil:
		m.last = v.epochs
		return failure.None, ""
	}
	found := k.goBack(m.last, v.epochs)
	if found.class == failure.None {
		m.last = found.newest
	}
	return found.class, found.detail
}

// Across judges a view against what any client of the checker was told before this one asked. asked and now are on one
// clock.
func (k *Checker) Across(v *View, asked, now time.Duration) (failure.Class, string) {
	if v.epochs == nil || len(v.epochs.of) == 0 {
		return failure.None, ""
	}
	if k.newest == nil || k.newestCluster != v.ClusterID {
		k.newest, k.newestAt, k.newestCluster = v.epochs, now, v.ClusterID
		return failure.None, ""
	}
	if k.newest == v.epochs {
		return failure.None, ""
	}
	found := k.goBack(k.newest, v.epochs)
	switch {
	case found.class == failure.None && found.newest != k.newest:
		k.newest, k.newestAt = found.newest, now
	case found.class != failure.None && asked > k.newestAt+k.expect.EpochGrace:
		return found.class, found.detail + ", which another connection was told"
	}
	return failure.None, ""
}

// goBack says whether young has an older epoch than old. It remembers pairs.
func (k *Checker) goBack(old, young *epochs) verdict {
	if old == young {
		return verdict{newest: old}
	}
	pair := [2]*epochs{old, young}
	found, known := k.compare[pair]
	if !known {
		found = k.compareEpochs(old, young)
		if len(k.compare) >= maxViews {
			k.compare = map[[2]*epochs]verdict{}
		}
		k.compare[pair] = found
	}
	return found
}

// compareEpochs: an answer that is about fewer partitions than the one before says nothing about the others.
func (k *Checker) compareEpochs(old, young *epochs) verdict {
	shared, same := 0, true
	for p, epoch := range young.of {
		before, ok := old.of[p]
		switch {
		case ok && epoch < before:
			detail := fmt.Sprintf("topic %q partition %d: leader epoch %d after %d", p.name, p.index, epoch, before)
			return verdict{class: failure.EpochBack, detail: detail}
		case ok:
			shared++
		}
		same = same && ok && epoch == before
	}
	switch {
	case same:
		return verdict{newest: old}
	case shared == len(old.of):
		return verdict{newest: young}
	}
	both := maps.Clone(old.of)
	maps.Copy(both, young.of)
	return verdict{newest: k.internEpochs(both)}
}
