package answer

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/wire"
)

// DescribeCluster (key 60), v0-2: the broker list with, from v2 on and when asked, the fenced ones that Metadata hides
// (KIP-700, KIP-1073). Authorized operations and controller endpoints are a broker's to tell.

// describeCluster has whole frames with correlation id zero, without and with fenced brokers; nil where the cluster has
// no DescribeCluster.
type describeCluster struct {
	frames [3][2]describedFrame
	ids    []int32 // live brokers, one of which a KRaft answer names as controller
}

type describedFrame struct {
	bytes      []byte
	controller int // offset of the controller id
}

// sameDescribed says whether two snapshots give the same answers to DescribeCluster: whether they share what they are made of.
func sameDescribed(a, b *snapshot.Snapshot) bool {
	return sameHead(a, b) && a.KRaft == b.KRaft && a.ControllerID == b.ControllerID &&
		(a.Described == nil) == (b.Described == nil) && snapshot.Shared(a.Described, b.Described)
}

func newDescribeCluster(snap *snapshot.Snapshot) describeCluster {
	var d describeCluster
	if snap.Described == nil {
		return d
	}
	if !snap.KRaft {
		d.ids = []int32{snap.ControllerID}
	} else {
		for i := range snap.Brokers {
			d.ids = append(d.ids, snap.Brokers[i].NodeID)
		}
	}
	for version := range d.frames {
		for fenced := range d.frames[version] {
			d.frames[version][fenced] = describe(snap, int16(version), fenced == 1)
		}
	}
	return d
}

func describe(snap *snapshot.Snapshot, version int16, fenced bool) describedFrame {
	resp := kmsg.NewPtrDescribeClusterResponse()
	resp.ClusterID, resp.ControllerID, resp.Version = snap.ClusterID, snap.ControllerID, version
	for _, b := range snap.Described {
		if fenced || !b.IsFenced {
			resp.Brokers = append(resp.Brokers, b)
		}
	}
	b := make([]byte, wire.SizeBytes+4+1) // header v1: no tagged fields
	b = resp.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-wire.SizeBytes))
	// The controller id follows the cluster id; an answer that differs in nothing else finds the place.
	resp.ControllerID = ^resp.ControllerID
	other := resp.AppendTo(make([]byte, wire.SizeBytes+4+1))
	at := wire.SizeBytes + 4 + 1
	for b[at] == other[at] {
		at++
	}
	return describedFrame{b, at}
}

func answerDescribeCluster(s *Set, out *Out, q *Request) (Verdict, wire.Fault) {
	req, fault := wire.ParseDescribeCluster(q.Body, q.Version, q.TagLimit)
	switch {
	case fault != wire.OK:
		return Close, fault
	case req.Ops, req.EndpointType != 1, s.describe.ids == nil:
		return Forward, wire.OK
	}
	f := &s.describe.frames[q.Version][0]
	if req.Fenced {
		f = &s.describe.frames[q.Version][1]
	}
	out.Copy(f.bytes[:wire.SizeBytes])
	out.int32(q.CorrelationID)
	out.Refer(f.bytes[wire.SizeBytes+4 : f.controller])
	out.int32(s.describe.ids[out.rand()%uint64(len(s.describe.ids))])
	out.Refer(f.bytes[f.controller+4:])
	return Answered, wire.OK
}
