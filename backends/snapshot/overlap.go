package snapshot

import (
	"cmp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Overlap returns what all of the tables have in common, or nil when there are none: of each key that every table lists
// the highest minimum and the lowest maximum, if that leaves a version; of features likewise; the finalized features and
// their epoch as the table with the highest epoch has them. The result is ascending, as the tables have to be.
func Overlap(tables []*APIs) *APIs {
	if len(tables) == 0 {
		return nil
	}
	newest := tables[0]
	zkReady := true
	for _, t := range tables {
		if t.FinalizedFeaturesEpoch > newest.FinalizedFeaturesEpoch {
			newest = t
		}
		zkReady = zkReady && t.ZkMigrationReady
	}
	all := &APIs{
		FinalizedFeatures:      newest.FinalizedFeatures,
		FinalizedFeaturesEpoch: newest.FinalizedFeaturesEpoch,
		ZkMigrationReady:       zkReady,
	}
	tables = distinct(tables)
	for _, k := range tables[0].Keys {
		for _, t := range tables[1:] {
			lo, hi, ok := t.Range(k.ApiKey)
			if !ok {
				lo, hi = 0, -1
			}
			k.MinVersion, k.MaxVersion = max(k.MinVersion, lo), min(k.MaxVersion, hi)
		}
		if k.MinVersion <= k.MaxVersion {
			all.Keys = append(all.Keys, k)
		}
	}
	for _, f := range tables[0].SupportedFeatures {
		for _, t := range tables[1:] {
			g := t.supported(f.Name)
			if g == nil {
				g = &kmsg.ApiVersionsResponseSupportedFeature{MaxVersion: -1}
			}
			f.MinVersion, f.MaxVersion = max(f.MinVersion, g.MinVersion), min(f.MaxVersion, g.MaxVersion)
		}
		if f.MinVersion <= f.MaxVersion {
			all.SupportedFeatures = append(all.SupportedFeatures, f)
		}
	}
	return all
}

// distinct leaves out tables that say what another does: a pool of thousands has two or three different ones.
func distinct(tables []*APIs) []*APIs {
	var out []*APIs
	for _, t := range tables {
		if !slices.ContainsFunc(out, func(o *APIs) bool { return o == t || SameAPIs(o, t) }) {
			out = append(out, t)
		}
	}
	return out
}

func (a *APIs) supported(name string) *kmsg.ApiVersionsResponseSupportedFeature {
	i, ok := slices.BinarySearchFunc(a.SupportedFeatures, name, func(f kmsg.ApiVersionsResponseSupportedFeature, name string) int {
		return strings.Compare(f.Name, name)
	})
	if !ok {
		return nil
	}
	return &a.SupportedFeatures[i]
}

// SameAPIs says whether two tables are alike but for the epoch of the finalized features, which is a log offset that
// moves by itself on KRaft.
func SameAPIs(a, b *APIs) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ZkMigrationReady == b.ZkMigrationReady &&
		slices.EqualFunc(a.Keys, b.Keys, func(a, b kmsg.ApiVersionsResponseApiKey) bool {
			return a.ApiKey == b.ApiKey && a.MinVersion == b.MinVersion && a.MaxVersion == b.MaxVersion
		}) &&
		slices.EqualFunc(a.SupportedFeatures, b.SupportedFeatures, func(a, b kmsg.ApiVersionsResponseSupportedFeature) bool {
			return a.Name == b.Name && a.MinVersion == b.MinVersion && a.MaxVersion == b.MaxVersion
		}) &&
		slices.EqualFunc(a.FinalizedFeatures, b.FinalizedFeatures, func(a, b kmsg.ApiVersionsResponseFinalizedFeature) bool {
			return a.Name == b.Name && a.MinVersionLevel == b.MinVersionLevel && a.MaxVersionLevel == b.MaxVersionLevel
		})
}

// KRaft says whether a table is that of a broker of a KRaft cluster: it has finalized a metadata.version, or lists
// DescribeQuorum, which brokers on ZooKeeper do not.
func (a *APIs) KRaft() bool {
	const describeQuorum = 55
	if _, _, ok := a.Range(describeQuorum); ok {
		return true
	}
	return slices.ContainsFunc(a.FinalizedFeatures, func(f kmsg.ApiVersionsResponseFinalizedFeature) bool {
		return f.Name == "metadata.version"
	})
}

// Response encodes a table as an ApiVersions answer of the version that holds all of it, for keeping on disk.
func (a *APIs) Response() *kmsg.ApiVersionsResponse {
	r := kmsg.NewPtrApiVersionsResponse()
	r.Version = 4
	r.ApiKeys = a.Keys
	r.SupportedFeatures = a.SupportedFeatures
	r.FinalizedFeatures = a.FinalizedFeatures
	r.FinalizedFeaturesEpoch = a.FinalizedFeaturesEpoch
	r.ZkMigrationReady = a.ZkMigrationReady
	return r
}

// APIsOf makes a table of an ApiVersions answer, whose lists it takes over and sorts.
func APIsOf(r *kmsg.ApiVersionsResponse) *APIs {
	slices.SortFunc(r.ApiKeys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return cmp.Compare(a.ApiKey, b.ApiKey) })
	slices.SortFunc(r.SupportedFeatures, func(a, b kmsg.ApiVersionsResponseSupportedFeature) int {
		return strings.Compare(a.Name, b.Name)
	})
	slices.SortFunc(r.FinalizedFeatures, func(a, b kmsg.ApiVersionsResponseFinalizedFeature) int {
		return strings.Compare(a.Name, b.Name)
	})
	return &APIs{
		Keys:                   r.ApiKeys,
		SupportedFeatures:      r.SupportedFeatures,
		FinalizedFeatures:      r.FinalizedFeatures,
		FinalizedFeaturesEpoch: r.FinalizedFeaturesEpoch,
		ZkMigrationReady:       r.ZkMigrationReady,
	}
}
