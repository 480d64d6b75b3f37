package probe

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/healthcheck"
)

// listing is what a broker list says.
type listing struct {
	clusterID  string
	controller int32
	brokers    []kmsg.MetadataResponseBroker // ascending by node id
	self       int32                         // who of them the broker is, AnyNode when unknown
}

// metadata is the check that gets the broker list: no topics, no auto-creation, nothing that a broker logs.
func metadata(ctx context.Context, v *visit) (healthcheck.Reason, string) {
	if l := v.conn.list; l != nil && v.passed && v.skipped+1 < v.cfg.MetadataEvery() {
		v.skipped++
		v.show(l)
		return healthcheck.OK, fmt.Sprintf("asked %d probes ago", v.skipped)
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
	l, err := readListing(high, body)
	if err != nil {
		return classify(ctx, err, ReasonBadAnswer)
	}
	l.brokers = v.cfg.Lists.share(l.brokers)
	if old := v.conn.list; old != nil {
		l.self = old.self // where to look first
	}
	v.skipped, v.res.Listed = 0, true
	v.show(l)
	if len(l.brokers) == 0 {
		v.conn.list = nil
		return ReasonNoBrokers, "the broker lists no brokers: it is starting, or cut off from its cluster"
	}
	v.conn.list = l
	return healthcheck.OK, fmt.Sprintf("v%d, %d brokers, controller %d", high, len(l.brokers), l.controller)
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
	l := &listing{controller: answer.ControllerID, brokers: answer.Brokers, self: AnyNode}
	if answer.ClusterID != nil {
		l.clusterID = *answer.ClusterID
	}
	slices.SortFunc(l.brokers, func(a, b kmsg.MetadataResponseBroker) int { return int(a.NodeID) - int(b.NodeID) })
	for i, b := range l.brokers {
		if b.NodeID < 0 || i > 0 && l.brokers[i-1].NodeID == b.NodeID {
			return nil, badAnswer("Metadata v%d lists node id %d twice, or one below 0", version, b.NodeID)
		}
	}
	return l, nil
}
