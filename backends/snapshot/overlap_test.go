package snapshot

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func table(epoch int64, keys ...[3]int16) *APIs {
	a := &APIs{FinalizedFeaturesEpoch: epoch}
	for _, k := range keys {
		a.Keys = append(a.Keys, kmsg.ApiVersionsResponseApiKey{ApiKey: k[0], MinVersion: k[1], MaxVersion: k[2]})
	}
	return a
}

func (a *APIs) feature(name string, lo, hi, final int16) *APIs {
	a.SupportedFeatures = append(a.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{Name: name, MinVersion: lo, MaxVersion: hi})
	if final >= 0 {
		a.FinalizedFeatures = append(a.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{Name: name, MinVersionLevel: final, MaxVersionLevel: final})
	}
	return a
}

// BL-02: what kafkajs takes from the VIP it uses on every broker.
func TestOverlap(t *testing.T) {
	newer := table(40, [3]int16{0, 0, 13}, [3]int16{1, 4, 18}, [3]int16{3, 0, 13}, [3]int16{60, 0, 2}, [3]int16{71, 0, 0}).
		feature("kraft.version", 0, 1, 1).feature("metadata.version", 7, 29, 25)
	older := table(42, [3]int16{0, 0, 7}, [3]int16{1, 0, 11}, [3]int16{3, 0, 8}, [3]int16{4, 0, 2}).
		feature("metadata.version", 1, 21, 20)
	apart := table(-1, [3]int16{0, 0, 5}, [3]int16{1, 12, 18}, [3]int16{3, 2, 9})
	for _, c := range []struct {
		name   string
		tables []*APIs
		want   *APIs
	}{
		{"nobody", nil, nil},
		{"one", []*APIs{newer}, newer},
		{"a rolling upgrade", []*APIs{newer, older, newer},
			&APIs{
				Keys:                   table(0, [3]int16{0, 0, 7}, [3]int16{1, 4, 11}, [3]int16{3, 0, 8}).Keys,
				SupportedFeatures:      table(0).feature("metadata.version", 7, 21, -1).SupportedFeatures,
				FinalizedFeatures:      older.FinalizedFeatures,
				FinalizedFeaturesEpoch: 42,
			}},
		{"nothing in common", []*APIs{older, apart},
			&APIs{
				Keys:                   table(0, [3]int16{0, 0, 5}, [3]int16{3, 2, 8}).Keys,
				FinalizedFeatures:      older.FinalizedFeatures,
				FinalizedFeaturesEpoch: 42,
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Overlap(c.tables), cmpopts.EquateEmpty(), cmpopts.IgnoreTypes(kmsg.Tags{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if len(newer.Keys) != 5 || newer.Keys[0].MaxVersion != 13 {
		t.Error("a broker's own table was changed")
	}
}

func TestKRaftIsDetected(t *testing.T) {
	for _, c := range []struct {
		name string
		apis *APIs
		want bool
	}{
		{"Kafka 1.1 on ZooKeeper", table(-1, [3]int16{3, 0, 5}), false},
		{"Kafka 3.9 on ZooKeeper", table(0, [3]int16{3, 0, 12}, [3]int16{60, 0, 1}).feature("metadata.version", 1, 21, -1), false},
		{"Kafka 4.3", table(100, [3]int16{3, 0, 13}, [3]int16{55, 0, 2}), true},
		{"a finalized metadata.version", table(100, [3]int16{3, 0, 13}).feature("metadata.version", 7, 29, 25), true},
	} {
		if got := c.apis.KRaft(); got != c.want {
			t.Errorf("%s: KRaft is %v, want %v", c.name, got, c.want)
		}
	}
}

func TestATableSurvivesItsEncoding(t *testing.T) {
	want := table(40, [3]int16{0, 0, 13}, [3]int16{3, 0, 13}).feature("group.version", 0, 1, 1).feature("metadata.version", 7, 29, 25)
	r := want.Response()
	back := kmsg.NewPtrApiVersionsResponse()
	back.Version = r.Version
	if err := back.ReadFrom(r.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, APIsOf(back), cmpopts.EquateEmpty(), cmpopts.IgnoreTypes(kmsg.Tags{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
