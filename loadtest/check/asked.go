package check

import (
	"fmt"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
)

// Errors of FindCoordinator that a client waits out, and that a broker gives while another one dies.
const (
	coordinatorLoading      = 14
	coordinatorNotAvailable = 15
)

// DescribeCluster judges an answer's body.
func (k *Checker) DescribeCluster(version int16, body []byte) *View {
	return k.view(viewKey{api: kafka.KeyDescribeCluster, version: version}, body, func() *View {
		m, v := kafka.DescribeCluster{}, &View{}
		if err := m.Decode(version, body); err != nil {
			v.Fault, v.Detail = bodyFault(err), err.Error()
			return v
		}
		what := fmt.Sprintf("DescribeCluster v%d", version)
		if m.ErrorCode != 0 {
			v.Fault, v.Detail = failure.ErrorCode, fmt.Sprintf("%s: error %d", what, m.ErrorCode)
			return v
		}
		v.ClusterID, v.Brokers = string(m.ClusterID), addresses(m.Brokers)
		if k.expect.Facts {
			v.facts = []fact{clusterFact(m.ClusterID), brokersFact(m.Brokers)}
		}
		v.Fault, v.Detail = k.clusterFault(what, m.Brokers, m.ClusterID, true)
		return v
	})
}

// FindCoordinator judges an answer's body; the request named one group.
func (k *Checker) FindCoordinator(version int16, group string, body []byte) *View {
	return k.view(viewKey{api: kafka.KeyFindCoordinator, version: version, group: group}, body, func() *View {
		m, v := kafka.FindCoordinator{}, &View{}
		what := fmt.Sprintf("FindCoordinator v%d", version)
		if err := m.Decode(version, body); err != nil {
			v.Fault, v.Detail = bodyFault(err), err.Error()
			return v
		}
		if n := len(m.Coordinators); n != 1 {
			v.Fault, v.Detail = failure.Malformed, fmt.Sprintf("%s: %d coordinators of one group", what, n)
			return v
		}
		switch c := m.Coordinators[0]; {
		case c.Key != nil && string(c.Key) != group:
			v.Fault, v.Detail = failure.Malformed, fmt.Sprintf("%s: the coordinator of group %q, asked for %q", what, c.Key, group)
		case c.ErrorCode == coordinatorLoading || c.ErrorCode == coordinatorNotAvailable:
			v.CoordinatorErrors = 1
		case c.ErrorCode != 0:
			v.Fault, v.Detail = failure.ErrorCode, fmt.Sprintf("%s: error %d", what, c.ErrorCode)
		case c.NodeID < 0 || len(c.Host) == 0 || c.Port < 1 || c.Port > 65535:
			v.Fault, v.Detail = failure.Malformed, fmt.Sprintf("%s: the coordinator is broker %d at %q port %d", what, c.NodeID, c.Host, c.Port)
		}
		if k.expect.Facts {
			v.facts = []fact{coordinatorFact(group, m.Coordinators[0])}
		}
		return v
	})
}
