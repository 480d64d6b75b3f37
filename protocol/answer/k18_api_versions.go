package answer

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/wire"
)

// ApiVersions (key 18), v0-5, from memory. Its response header is always v0, so that a client of any age can read it
// (KIP-511). The table is what every broker of the pool serves, floors included (clients.md R2, R3).

// apiVersions has whole frames, correlation id zero.
type apiVersions struct {
	max         int16
	frames      [6][]byte
	unsupported []byte    // v0 body, error 35, the one entry for key 18
	invalid     [6][]byte // error 42, no entries
	rebootstrap []byte    // v5: error 129
}

func newApiVersions(a *snapshot.APIs) apiVersions {
	var v apiVersions
	resp := kmsg.NewPtrApiVersionsResponse()
	own := kmsg.NewApiVersionsResponseApiKey()
	for _, k := range a.Keys {
		k.MaxVersion = capped(k.ApiKey, k.MaxVersion)
		if k.MinVersion > k.MaxVersion {
			continue
		}
		if k.ApiKey == wire.KeyApiVersions {
			own, v.max = k, k.MaxVersion
		}
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	resp.FinalizedFeatures, resp.FinalizedFeaturesEpoch = a.FinalizedFeatures, a.FinalizedFeaturesEpoch
	resp.ZkMigrationReady = a.ZkMigrationReady
	for version := range v.frames {
		// Before v4, features that start at 0 crash clients (KAFKA-17492).
		resp.SupportedFeatures = nil
		for _, f := range a.SupportedFeatures {
			if f.MinVersion > 0 || version >= 4 {
				resp.SupportedFeatures = append(resp.SupportedFeatures, f)
			}
		}
		v.frames[version] = frameOf(resp, int16(version))
		v.invalid[version] = errorFrame(kerr.InvalidRequest.Code, int16(version))
	}
	v.unsupported = errorFrame(kerr.UnsupportedVersion.Code, 0, own)
	v.rebootstrap = errorFrame(kerr.RebootstrapRequired.Code, 5)
	return v
}

func errorFrame(code, version int16, keys ...kmsg.ApiVersionsResponseApiKey) []byte {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode, resp.ApiKeys = code, keys
	return frameOf(resp, version)
}

// frameOf encodes a whole frame with a v0 response header.
func frameOf(resp kmsg.Response, version int16) []byte {
	resp.SetVersion(version)
	b := resp.AppendTo(make([]byte, wire.SizeBytes+4))
	binary.BigEndian.PutUint32(b, uint32(len(b)-wire.SizeBytes))
	return b
}

// whole puts a whole ready frame out, with the request's correlation id.
func (o *Out) whole(frame []byte, correlationID int32) {
	o.Copy(frame[:wire.SizeBytes])
	o.int32(correlationID)
	o.Refer(frame[wire.SizeBytes+4:])
}

func answerApiVersions(s *Set, out *Out, q *Request) (Verdict, wire.Fault) {
	v := &s.api
	if q.Version < 0 || q.Version > v.max {
		out.whole(v.unsupported, q.CorrelationID)
		return Answered, wire.OK
	}
	req, fault := wire.ParseApiVersions(q.Body, q.Version, q.TagLimit)
	frame := v.frames[q.Version]
	switch {
	case fault != wire.OK:
		return Close, fault
	case q.Version >= 3 && !(wire.ValidSoftware(req.SoftwareName) && wire.ValidSoftware(req.SoftwareVersion)),
		req.HasClusterID != req.HasNodeID:
		frame = v.invalid[q.Version]
	case req.HasClusterID:
		// The client believes that it talks to a broker it has learned of: it holds the VIP's address for one (KIP-1242).
		frame = v.rebootstrap
	}
	out.whole(frame, q.CorrelationID)
	return Answered, wire.OK
}
