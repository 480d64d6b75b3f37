package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/healthcheck"
)

// firstVersion is the ApiVersions version to begin with: below v4 brokers hide features whose minimum is 0
// (KAFKA-17492), and v5 adds only what a bootstrap connection must leave out (KIP-1242).
const firstVersion = 4

// unsupportedVersion is the error of a broker that does not know the version of an ApiVersions request; its answer is in
// v0 then, whatever was asked (KIP-511).
const unsupportedVersion = 35

// table is an ApiVersions answer, kept for as long as the broker repeats it byte by byte.
type table struct {
	version int16
	body    []byte
	apis    *snapshot.APIs
}

func (t *table) says(version int16, body []byte) bool {
	return t != nil && t.version == version && bytes.Equal(t.body, body)
}

// apiVersions is the check that gets the broker's table.
func apiVersions(ctx context.Context, v *visit) (healthcheck.Reason, string) {
	version := v.version
	if version < 0 {
		version = firstVersion
	}
	for {
		begun := time.Now()
		body, err := v.conn.ask(ctx, apiVersionsRequest(version))
		if err != nil {
			return classify(ctx, err, ReasonBadAnswer)
		}
		v.res.RTT = max(time.Since(begun), 1)
		lower, err := v.takeTable(version, body)
		if err != nil {
			return classify(ctx, err, ReasonBadAnswer)
		}
		if lower < 0 {
			v.version, v.res.APIs = version, v.table.apis
			return v.ok(func() string { return fmt.Sprintf("v%d, %d keys", version, len(v.table.apis.Keys)) })
		}
		version = lower
	}
}

func apiVersionsRequest(version int16) *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = version
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kvip", "probe"
	return req
}

// takeTable reads an answer into v.table. When the broker does not know the version, lower is the one to ask next, else
// it is -1.
func (v *visit) takeTable(version int16, body []byte) (lower int16, err error) {
	if v.table.says(version, body) {
		return -1, nil
	}
	if known := v.cfg.Lists.table(version, body); known != nil {
		v.table = known
		return -1, nil
	}
	body = slices.Clone(body) // the codec's tagged fields refer to it, and the next probe reads into the same buffer
	if len(body) < 2 {
		return 0, badAnswer("ApiVersions v%d: an answer of %d bytes", version, len(body))
	}
	code := int16(binary.BigEndian.Uint16(body))
	answer := kmsg.NewPtrApiVersionsResponse()
	answer.Version = version
	if code == unsupportedVersion {
		answer.Version = 0
	}
	if err := answer.ReadFrom(body); err != nil {
		return 0, badAnswer("ApiVersions v%d: %v", version, err)
	}
	switch {
	case code == unsupportedVersion && version == 0:
		return 0, &fault{ReasonVersion, "ApiVersions v0 is unknown to the broker"}
	case code == unsupportedVersion:
		for _, k := range answer.ApiKeys {
			if k.ApiKey == int16(kmsg.ApiVersions) && k.MaxVersion > 0 && k.MaxVersion < version {
				return k.MaxVersion, nil
			}
		}
		return 0, nil // brokers before 2.4 do not say which they know
	case code != 0:
		return 0, badAnswer("ApiVersions v%d: error %v", version, kerr.ErrorForCode(code))
	}
	apis, err := toAPIs(answer)
	if err != nil {
		return 0, err
	}
	v.table = v.cfg.Lists.shareTable(&table{version: version, body: body, apis: apis})
	return -1, nil
}

// toAPIs sorts the answer, leaves out keys that have no version, and refuses a table that contradicts itself.
func toAPIs(a *kmsg.ApiVersionsResponse) (*snapshot.APIs, error) {
	out := &snapshot.APIs{
		Keys: a.ApiKeys, SupportedFeatures: a.SupportedFeatures, FinalizedFeatures: a.FinalizedFeatures,
		FinalizedFeaturesEpoch: a.FinalizedFeaturesEpoch, ZkMigrationReady: a.ZkMigrationReady,
	}
	out.Keys = slices.DeleteFunc(out.Keys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.MinVersion < 0 || k.MinVersion > k.MaxVersion })
	slices.SortFunc(out.Keys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey) - int(b.ApiKey) })
	for i, k := range out.Keys {
		if i > 0 && out.Keys[i-1].ApiKey == k.ApiKey {
			return nil, badAnswer("ApiVersions lists key %d twice", k.ApiKey)
		}
	}
	slices.SortFunc(out.SupportedFeatures, func(a, b kmsg.ApiVersionsResponseSupportedFeature) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(out.FinalizedFeatures, func(a, b kmsg.ApiVersionsResponseFinalizedFeature) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// brokerListener is the check that tells a broker's listener from a controller's (KIP-919): a controller answers neither
// Produce nor Metadata.
func brokerListener(_ context.Context, v *visit) (healthcheck.Reason, string) {
	for _, key := range []kmsg.Key{kmsg.Produce, kmsg.Metadata} {
		if _, _, ok := v.res.APIs.Range(int16(key)); !ok {
			return ReasonController, fmt.Sprintf("the listener does not offer %s: a controller's, not a broker's; register the broker's port", key.Name())
		}
	}
	return healthcheck.OK, "a broker's"
}
