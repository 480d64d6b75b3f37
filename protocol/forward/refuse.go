package forward

import (
	"encoding/binary"

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

func refuseLeader(req kmsg.Request, code int16) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		if req.Acks == 0 {
			return nil
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode, rp.BaseOffset = p.Partition, code, -1
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.FetchRequest:
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.ErrorCode, rp.HighWatermark = p.Partition, code, -1
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.ListOffsetsRequest:
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.OffsetForLeaderEpochRequest:
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	return nil
}

func refuseCoordinator(req kmsg.Request, code int16) kmsg.Response {
	switch resp := req.ResponseKind().(type) {
	case *kmsg.JoinGroupResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.SyncGroupResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.HeartbeatResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.LeaveGroupResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.ConsumerGroupHeartbeatResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.ShareGroupHeartbeatResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.AddOffsetsToTxnResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.EndTxnResponse:
		resp.ErrorCode = code
		return resp
	case *kmsg.OffsetCommitResponse:
		return refuseOffsetCommit(req.(*kmsg.OffsetCommitRequest), resp, code)
	case *kmsg.OffsetFetchResponse:
		return refuseOffsetFetch(req.(*kmsg.OffsetFetchRequest), resp, code)
	case *kmsg.TxnOffsetCommitResponse:
		for _, t := range req.(*kmsg.TxnOffsetCommitRequest).Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	return nil
}

func refuseOffsetCommit(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, code int16) kmsg.Response {
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// refuseOffsetFetch: the error is per partition in v0-1, at the top in v2-7, per group from v8 on.
func refuseOffsetFetch(req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse, code int16) kmsg.Response {
	for _, g := range req.Groups {
		rg := kmsg.NewOffsetFetchResponseGroup()
		rg.Group, rg.ErrorCode = g.Group, code
		resp.Groups = append(resp.Groups, rg)
	}
	if req.Version < 8 {
		resp.ErrorCode = code
	}
	for _, t := range req.Topics {
		if req.Version >= 2 {
			break
		}
		rt := kmsg.NewOffsetFetchResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetFetchResponseTopicPartition()
			rp.Partition, rp.Offset, rp.ErrorCode = p, -1, code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func refuseWrite(req kmsg.Request, code int16) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.CreateTopicsRequest:
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewCreateTopicsResponseTopic()
			rt.Topic, rt.ErrorCode, rt.ErrorMessage = t.Topic, code, &policyMessage
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.DeleteTopicsRequest:
		resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
		for _, name := range req.TopicNames {
			rt := kmsg.NewDeleteTopicsResponseTopic()
			rt.Topic, rt.ErrorCode, rt.ErrorMessage = &name, code, &policyMessage
			resp.Topics = append(resp.Topics, rt)
		}
		for _, t := range req.Topics {
			rt := kmsg.NewDeleteTopicsResponseTopic()
			rt.Topic, rt.TopicID, rt.ErrorCode, rt.ErrorMessage = t.Topic, t.TopicID, code, &policyMessage
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.CreatePartitionsRequest:
		resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewCreatePartitionsResponseTopic()
			rt.Topic, rt.ErrorCode, rt.ErrorMessage = t.Topic, code, &policyMessage
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	return nil
}
