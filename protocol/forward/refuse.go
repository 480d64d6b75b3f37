package forward

import (
	"encoding/binary"
	"iter"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// refuseLimit bounds what is decoded only to be refused: a decoded request takes up to forty times its bytes.
const refuseLimit = 64 << 10

// policyMessage goes with refusals that have room for a reason.
var policyMessage = "this address only bootstraps clients; ask a broker that Metadata lists, or set forward.writes on the gateway"

// Refuse answers a request that does not belong at a bootstrap address as a broker that is not the right one would: with
// the proper error on each item. It returns nil where the protocol has no such answer (Produce with acks=0, bodies that
// do not parse, keys whose errors are not spelled out here): the connection is then closed.
func Refuse(class Class, key, version int16, correlationID int32, body []byte) []byte {
	req := kmsg.RequestForKey(key)
	if req == nil || version < 0 || version > req.MaxVersion() || len(body) > refuseLimit {
		return nil
	}
	req.SetVersion(version)
	if req.ReadFrom(body) != nil {
		return nil
	}
	var resp kmsg.Response
	switch class {
	case Leader:
		resp = refuseLeader(req, kerr.NotLeaderForPartition.Code)
	case Coordinator:
		resp = refuseCoordinator(req, kerr.NotCoordinator.Code)
	case Write:
		resp = refuseWrite(req, kerr.PolicyViolation.Code)
	}
	if resp == nil {
		return nil
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 4, 128), uint32(correlationID))
	if resp.IsFlexible() {
		frame = append(frame, 0) // no tagged fields in the header
	}
	frame = resp.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// each goes over a request's items and adds one to the answer's for each, as fresh makes it.
func each[Q, R any](items []Q, answers *[]R, fresh func() R) iter.Seq2[Q, *R] {
	return func(yield func(Q, *R) bool) {
		for _, q := range items {
			*answers = append(*answers, fresh())
			if !yield(q, &(*answers)[len(*answers)-1]) {
				return
			}
		}
	}
}

func refuseLeader(req kmsg.Request, code int16) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		if req.Acks == 0 {
			return nil
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewProduceResponseTopic) {
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for p, rp := range each(t.Partitions, &rt.Partitions, kmsg.NewProduceResponseTopicPartition) {
				rp.Partition, rp.ErrorCode, rp.BaseOffset = p.Partition, code, -1
			}
		}
		return resp
	case *kmsg.FetchRequest:
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewFetchResponseTopic) {
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for p, rp := range each(t.Partitions, &rt.Partitions, kmsg.NewFetchResponseTopicPartition) {
				rp.Partition, rp.ErrorCode, rp.HighWatermark = p.Partition, code, -1
			}
		}
		return resp
	case *kmsg.ListOffsetsRequest:
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewListOffsetsResponseTopic) {
			rt.Topic = t.Topic
			for p, rp := range each(t.Partitions, &rt.Partitions, kmsg.NewListOffsetsResponseTopicPartition) {
				rp.Partition, rp.ErrorCode = p.Partition, code
			}
		}
		return resp
	case *kmsg.OffsetForLeaderEpochRequest:
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewOffsetForLeaderEpochResponseTopic) {
			rt.Topic = t.Topic
			for p, rp := range each(t.Partitions, &rt.Partitions, kmsg.NewOffsetForLeaderEpochResponseTopicPartition) {
				rp.Partition, rp.ErrorCode = p.Partition, code
			}
		}
		return resp
	}
	return nil
}

func refuseCoordinator(req kmsg.Request, code int16) kmsg.Response {
	answer := req.ResponseKind()
	switch resp := answer.(type) {
	case *kmsg.JoinGroupResponse:
		resp.ErrorCode = code
	case *kmsg.SyncGroupResponse:
		resp.ErrorCode = code
	case *kmsg.HeartbeatResponse:
		resp.ErrorCode = code
	case *kmsg.LeaveGroupResponse:
		resp.ErrorCode = code
	case *kmsg.ConsumerGroupHeartbeatResponse:
		resp.ErrorCode = code
	case *kmsg.ShareGroupHeartbeatResponse:
		resp.ErrorCode = code
	case *kmsg.AddOffsetsToTxnResponse:
		resp.ErrorCode = code
	case *kmsg.EndTxnResponse:
		resp.ErrorCode = code
	case *kmsg.OffsetCommitResponse:
		for t, rt := range each(req.(*kmsg.OffsetCommitRequest).Topics, &resp.Topics, kmsg.NewOffsetCommitResponseTopic) {
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for p, rp := range each(t.Partitions, &rt.Partitions, kmsg.NewOffsetCommitResponseTopicPartition) {
				rp.Partition, rp.ErrorCode = p.Partition, code
			}
		}
	case *kmsg.OffsetFetchResponse:
		refuseOffsetFetch(req.(*kmsg.OffsetFetchRequest), resp, code)
	case *kmsg.TxnOffsetCommitResponse:
		for t, rt := range each(req.(*kmsg.TxnOffsetCommitRequest).Topics, &resp.Topics, kmsg.NewTxnOffsetCommitResponseTopic) {
			rt.Topic = t.Topic
			for p, rp := range each(t.Partitions, &rt.Partitions, kmsg.NewTxnOffsetCommitResponseTopicPartition) {
				rp.Partition, rp.ErrorCode = p.Partition, code
			}
		}
	default:
		return nil
	}
	return answer
}

// refuseOffsetFetch: the error is per partition in v0-1, at the top in v2-7, per group from v8 on.
func refuseOffsetFetch(req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse, code int16) {
	for g, rg := range each(req.Groups, &resp.Groups, kmsg.NewOffsetFetchResponseGroup) {
		rg.Group, rg.ErrorCode = g.Group, code
	}
	if req.Version < 8 {
		resp.ErrorCode = code
	}
	if req.Version >= 2 {
		return
	}
	for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewOffsetFetchResponseTopic) {
		rt.Topic = t.Topic
		for p, rp := range each(t.Partitions, &rt.Partitions, kmsg.NewOffsetFetchResponseTopicPartition) {
			rp.Partition, rp.Offset, rp.ErrorCode = p, -1, code
		}
	}
}

func refuseWrite(req kmsg.Request, code int16) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.CreateTopicsRequest:
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewCreateTopicsResponseTopic) {
			rt.Topic, rt.ErrorCode, rt.ErrorMessage = t.Topic, code, &policyMessage
		}
		return resp
	case *kmsg.DeleteTopicsRequest:
		resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
		for name, rt := range each(req.TopicNames, &resp.Topics, kmsg.NewDeleteTopicsResponseTopic) {
			rt.Topic, rt.ErrorCode, rt.ErrorMessage = &name, code, &policyMessage
		}
		for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewDeleteTopicsResponseTopic) {
			rt.Topic, rt.TopicID, rt.ErrorCode, rt.ErrorMessage = t.Topic, t.TopicID, code, &policyMessage
		}
		return resp
	case *kmsg.CreatePartitionsRequest:
		resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
		for t, rt := range each(req.Topics, &resp.Topics, kmsg.NewCreatePartitionsResponseTopic) {
			rt.Topic, rt.ErrorCode, rt.ErrorMessage = t.Topic, code, &policyMessage
		}
		return resp
	}
	return nil
}
