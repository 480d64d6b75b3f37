package probe

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// FuzzAnswer feeds a broker's bytes to both readers: they must not panic, and what they accept must hold together.
func FuzzAnswer(f *testing.F) {
	s := newStub(f)
	for v := range int16(14) {
		f.Add(v, s.apiVersions(min(v, 4)))
		f.Add(v, s.metadata(v))
	}
	f.Add(int16(3), []byte{0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 0 || version > 13 || len(body) > 1<<20 {
			return
		}
		if l, err := readListing(version, body); err == nil {
			for i, b := range l.brokers {
				if b.NodeID < 0 || i > 0 && l.brokers[i-1].NodeID >= b.NodeID || l.byID(b.NodeID) == nil {
					t.Errorf("accepted brokers %v", l.brokers)
				}
			}
		}
		v := &visit{Prober: &Prober{}, res: &Result{}}
		version = min(version, firstVersion)
		switch lower, err := v.takeTable(version, body); {
		case err != nil:
		case lower >= 0 && lower >= version:
			t.Errorf("asks for v%d after v%d", lower, version)
		case lower < 0 && !slices.IsSortedFunc(v.table.apis.Keys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey) - int(b.ApiKey) }):
			t.Errorf("accepted keys %v", v.table.apis.Keys)
		}
	})
}
