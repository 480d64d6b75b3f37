package answer

import (
	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/wire"
)

// versions has the range of every listed key, by key for Kafka's own and in a map for vendors' (above 10000).
type versions struct {
	own    [128]span
	others map[int16]span
}

type span struct {
	min, max int16
	listed   bool
}

func newVersions(a *snapshot.APIs) versions {
	v := versions{others: map[int16]span{}}
	for _, k := range a.Keys {
		s := span{k.MinVersion, capped(k.ApiKey, k.MaxVersion), true}
		if s.min > s.max {
			continue
		}
		if k.ApiKey >= 0 && int(k.ApiKey) < len(v.own) {
			v.own[k.ApiKey] = s
		} else {
			v.others[k.ApiKey] = s
		}
	}
	return v
}

// capped is the highest version of a key that clients may use: a broker's, or the highest that kvip encodes for the keys
// that it answers itself.
func capped(key, max int16) int16 {
	if own, ok := Keys[key]; ok {
		return min(max, own)
	}
	return max
}

func (v *versions) check(key, version int16) wire.Fault {
	var s span
	if key >= 0 && int(key) < len(v.own) {
		s = v.own[key]
	} else {
		s = v.others[key]
	}
	switch {
	case !s.listed:
		return wire.FaultKey
	case version < s.min || version > s.max:
		return wire.FaultVersion
	}
	return wire.OK
}
