package snapshot

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokerList is the last broker list that was read, sorted, with the bytes that it was read from.
type brokerList struct {
	version   int16
	bytes     []byte
	list      []kmsg.MetadataResponseBroker
	clusterID string
	sound     bool // it has passed the rules
}

// read reads what a Metadata answer has from its broker list to its cluster id, unless it is what was read before.
func (l *brokerList) read(version int16, head []byte) error {
	if l.list != nil && l.version == version && bytes.Equal(l.bytes, head) {
		return nil
	}
	// The codec gets an answer whose other fields are zeroes: no topics.
	const most = 16
	body := make([]byte, 0, len(head)+4+most)
	if version >= 3 {
		body = append(body, 0, 0, 0, 0)
	}
	body = append(append(body, head...), make([]byte, most)...)
	resp := kmsg.MetadataResponse{Version: version}
	if err := resp.ReadFrom(body); err != nil {
		return err
	}
	slices.SortFunc(resp.Brokers, func(a, b kmsg.MetadataResponseBroker) int { return cmp.Compare(a.NodeID, b.NodeID) })
	*l = brokerList{version: version, bytes: bytes.Clone(head), list: resp.Brokers, clusterID: deref(resp.ClusterID)}
	return nil
}

func (l *brokerList) check(a *answered, rules Rules) *Fault {
	switch {
	case a.errorCode != 0:
		return faultf(ErrorCode, "Metadata: %v", kerr.ErrorForCode(a.errorCode))
	case len(l.list) == 0:
		return faultf(NoBrokers, "the broker list is empty, with %d topics", a.topics)
	case l.clusterID != rules.ClusterID:
		return faultf(WrongCluster, "the cluster id is %q, the pool's is %q", l.clusterID, rules.ClusterID)
	case l.sound:
		return nil
	}
	f := checkBrokers(l.list, rules)
	l.sound = f == nil
	return f
}

// describedList is the last answer to DescribeCluster that was read, its brokers sorted, with its bytes.
type describedList struct {
	version    int16
	bytes      []byte
	controller int // where the controller id is in bytes: any is fine, as kvip gives its own
	list       []kmsg.DescribeClusterResponseBroker
	resp       kmsg.DescribeClusterResponse
	sound      bool // it has passed the rules
}

// read reads an answer, unless it is what was read before.
func (l *describedList) read(e Encoded) error {
	const throttle = 4
	if at := l.controller; l.list != nil && l.version == e.Version && len(l.bytes) == len(e.Body) &&
		bytes.Equal(l.bytes[throttle:at], e.Body[throttle:at]) && bytes.Equal(l.bytes[at+4:], e.Body[at+4:]) {
		return nil
	}
	// The codec's tagged fields refer to what it reads, and the caller reads the next answer into the same buffer.
	body := bytes.Clone(e.Body)
	resp := kmsg.DescribeClusterResponse{Version: e.Version}
	if err := resp.ReadFrom(body); err != nil {
		return err
	}
	b := kbin.Reader{Src: body}
	b.Span(throttle)
	b.Int16()
	text(&b, flexible, true)
	if e.Version >= 1 {
		b.Int8()
	}
	text(&b, flexible, false)
	slices.SortFunc(resp.Brokers, func(a, b kmsg.DescribeClusterResponseBroker) int { return cmp.Compare(a.NodeID, b.NodeID) })
	*l = describedList{
		version: e.Version, bytes: body, controller: len(body) - len(b.Src), list: resp.Brokers, resp: resp,
	}
	return nil
}

func (l *describedList) check(rules Rules) *Fault {
	const endpointBrokers = 1
	switch desc := &l.resp; {
	case l.sound:
		return nil
	case desc.ErrorCode != 0:
		return faultf(ErrorCode, "DescribeCluster: %v", kerr.ErrorForCode(desc.ErrorCode))
	case desc.Version >= 1 && desc.EndpointType != endpointBrokers:
		return faultf(Controller, "DescribeCluster answers with endpoint type %d, brokers are %d", desc.EndpointType, endpointBrokers)
	case desc.ClusterID != rules.ClusterID:
		return faultf(WrongCluster, "DescribeCluster's cluster id is %q, the pool's is %q", desc.ClusterID, rules.ClusterID)
	case len(desc.Brokers) == 0:
		return faultf(NoBrokers, "DescribeCluster lists no broker")
	}
	for i, b := range l.list {
		if i > 0 && l.list[i-1].NodeID == b.NodeID {
			return faultf(Malformed, "DescribeCluster lists node id %d twice", b.NodeID)
		}
		if f := checkAddress(b.NodeID, b.Host, b.Port, rules); f != nil {
			return f
		}
	}
	l.sound = true
	return nil
}
