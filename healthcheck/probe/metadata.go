package probe

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/healthcheck"
)

// listing is what a broker list says.
type listing struct {
	print
	clusterID  string
	controller int32
	brokers    []kmsg.MetadataResponseBroker // ascending by node id
	self       int32                         // who of them the broker is, AnyNode when unknown
}

// print tells the answers that say the same apart from the controller, whom KRaft brokers draw anew in each.
type print struct {
	version int16
	size    int
	hole    int // where the controller's id is, -1 when it could not be found: then nothing is the same
	sum     uint64
}

const idBytes = 4

// printOf finds the controller as what changes in the answer's encoding with another one.
func printOf(answer *kmsg.MetadataResponse, body []byte) print {
	p := print{version: answer.Version, size: len(body), hole: -1}
	was := answer.ControllerID
	answer.ControllerID = ^was
	other := answer.AppendTo(make([]byte, 0, len(body)))
	answer.ControllerID = was
	if len(other) != len(body) {
		return p
	}
	for i := range body {
		if body[i] != other[i] {
			if i+idBytes <= len(body) && int32(binary.BigEndian.Uint32(body[i:])) == was && slices.Equal(body[i+idBytes:], other[i+idBytes:]) {
				p.hole, p.sum = i, sumAround(body, i)
			}
			return p
		}
	}
	return p
}

func sumAround(body []byte, hole int) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(body[:hole])
	_, _ = d.Write(body[hole+idBytes:])
	return d.Sum64()
}

// repeated is what body says if that is what l says, apart from the controller; else nil.
func (l *listing) repeated(version int16, body []byte) *listing {
	if l.hole < 0 || version != l.version || len(body) != l.size || sumAround(body, l.hole) != l.sum {
		return nil
	}
	again := *l
	again.controller = int32(binary.BigEndian.Uint32(body[l.hole:]))
	return &again
}

// metadata is the check that gets the broker list: no topics, no auto-creation, nothing that a broker logs.
func metadata(ctx context.Context, v *visit) (healthcheck.Reason, string) {
	if l := v.conn.list; l != nil && v.passed && v.skipped+1 < v.cfg.MetadataEvery() {
		v.skipped++
		v.show(l)
		return v.ok(func() string { return fmt.Sprintf("asked %d probes ago", v.skipped) })
	}
	req := kmsg.NewPtrMetadataRequest()
	low, high, ok := v.res.APIs.Range(req.Key())
	// From v1 on an empty list of topics means none (v0: all).
	low, high = max(low, 1), min(high, req.MaxVersion())
	if !ok || low > high {
		return ReasonVersion, fmt.Sprintf("the broker offers no Metadata version from 1 to %d", req.MaxVersion())
	}
	req.Version = high
	req.Topics = []kmsg.MetadataRequestTopic{}
	body, err := v.conn.ask(ctx, req)
	if err != nil {
		return classify(ctx, err, ReasonBadAnswer)
	}
	var l *listing
	old := v.conn.list
	if old != nil {
		l = old.repeated(high, body)
	}
	if l == nil {
		if l, err = v.cfg.Lists.read(high, body); err != nil {
			return classify(ctx, err, ReasonBadAnswer)
		}
		if old != nil {
			l.self = old.self // where to look first
		}
	}
	v.skipped, v.res.Listed = 0, true
	v.show(l)
	if len(l.brokers) == 0 {
		v.conn.list = nil
		return ReasonNoBrokers, "the broker lists no brokers: it is starting, or cut off from its cluster"
	}
	v.conn.list = l
	return v.ok(func() string {
		return fmt.Sprintf("v%d, %d brokers, controller %d", high, len(l.brokers), l.controller)
	})
}

// show puts a listing into the result; who the broker is remains for selfListed to say.
func (v *visit) show(l *listing) {
	v.res.ClusterID, v.res.ControllerID, v.res.Brokers = l.clusterID, l.controller, l.brokers
}

func readListing(version int16, body []byte) (*listing, error) {
	answer := kmsg.NewPtrMetadataResponse()
	answer.Version = version
	if err := answer.ReadFrom(body); err != nil {
		return nil, badAnswer("Metadata v%d: %v", version, err)
	}
	if answer.ErrorCode != 0 {
		return nil, badAnswer("Metadata v%d: error %v", version, kerr.ErrorForCode(answer.ErrorCode))
	}
	if len(answer.Topics) > 0 {
		return nil, badAnswer("Metadata v%d has %d topics that were not asked for", version, len(answer.Topics))
	}
	l := &listing{print: printOf(answer, body), controller: answer.ControllerID, brokers: answer.Brokers, self: AnyNode}
	if answer.ClusterID != nil {
		l.clusterID = *answer.ClusterID
	}
	slices.SortFunc(l.brokers, func(a, b kmsg.MetadataResponseBroker) int { return int(a.NodeID) - int(b.NodeID) })
	for i, b := range l.brokers {
		if b.NodeID < 0 || i > 0 && l.brokers[i-1].NodeID == b.NodeID {
			return nil, badAnswer("Metadata v%d lists node id %d twice, or one below 0", version, b.NodeID)
		}
		l.brokers[i].UnknownTags = kmsg.Tags{} // nobody wants them, and they refer to body, which the next answer overwrites
	}
	return l, nil
}
