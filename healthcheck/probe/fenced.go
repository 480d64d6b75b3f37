package probe

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/healthcheck"
)

// tellsFenced is the first version of DescribeCluster that tells fenced brokers apart (KIP-1073).
const tellsFenced = 2

// unfenced is the check that the cluster has not fenced the broker: such a one is in no list, and "not listed" would have
// people look for a wrong registration. Where the broker is in its own list nothing more is asked.
func unfenced(ctx context.Context, v *visit) (healthcheck.Reason, string) {
	l := v.conn.list
	if l.byID(l.self) != nil || l.byID(v.cfg.NodeID) != nil || l.byAddr(v.host, v.port) != nil {
		return v.ok(func() string { return "its list has it" })
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	if _, high, ok := v.res.APIs.Range(req.Key()); !ok || high < tellsFenced {
		return v.ok(func() string { return "the broker does not tell fenced ones apart" })
	}
	req.Version, req.IncludeFencedBrokers = tellsFenced, true
	body, err := v.conn.ask(ctx, req)
	if err != nil {
		return classify(ctx, err, ReasonBadAnswer)
	}
	answer := kmsg.NewPtrDescribeClusterResponse()
	answer.Version = req.Version
	if err := answer.ReadFrom(body); err != nil {
		return ReasonBadAnswer, fmt.Sprintf("DescribeCluster v%d: %v", req.Version, err)
	}
	if answer.ErrorCode != 0 {
		return v.ok(func() string {
			return fmt.Sprintf("not told: DescribeCluster v%d: %v", req.Version, kerr.ErrorForCode(answer.ErrorCode))
		})
	}
	i := slices.IndexFunc(answer.Brokers, func(b kmsg.DescribeClusterResponseBroker) bool {
		return b.IsFenced && b.NodeID >= 0 && (b.NodeID == l.self || b.NodeID == v.cfg.NodeID ||
			b.Port == int32(v.port) && strings.EqualFold(b.Host, v.host))
	})
	if i < 0 {
		return v.ok(func() string { return "no fenced broker is this one" })
	}
	return ReasonFenced, fmt.Sprintf("node %d is fenced: the controller does not hear from it, or it has not caught up yet",
		answer.Brokers[i].NodeID)
}
