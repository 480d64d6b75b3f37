package run

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvip/kvip/cmd/kvip/internal/config"
)

// vipsOf makes VIPs with these connection limits, 0 for a share.
func vipsOf(limits ...int) []config.VIP {
	var vips []config.VIP
	for i, n := range limits {
		v := config.DefaultVIP()
		v.Name, v.Limits.Connections = string(rune('a'+i)), n
		vips = append(vips, v)
	}
	return vips
}

// TestDivide: what pools, admin and loops need is kept, fixed limits are honoured, and the others share the rest.
func TestDivide(t *testing.T) {
	for _, c := range []struct {
		name    string
		limit   int
		needs   needs
		reserve int
		caps    []int
		warned  bool
		refused string
	}{
		{"one VIP gets all the rest", 20000, needs{pools: []int{151}, loops: 2, vips: vipsOf(0)}, 206, []int{19794}, false, ""},
		{"two share", 20000, needs{pools: []int{100, 100}, loops: 2, vips: vipsOf(0, 0)}, 261, []int{9869, 9869}, false, ""},
		{"a fixed one first", 20000, needs{pools: []int{100}, loops: 2, vips: vipsOf(5000, 0)}, 161, []int{5000, 14839}, false, ""},
		{"cramped is said", 256, needs{pools: []int{60}, loops: 2, vips: vipsOf(0)}, 115, []int{141}, true, ""},
		{"too small is refused", 128, needs{pools: []int{60}, loops: 2, vips: vipsOf(0)}, 115, nil, false, "the limit of open files is 128, but 115 are kept for pools, admin and event loops, and with 16 for the connections of 1 VIP at least 131 are needed: raise it (ulimit -n 65536, or LimitNOFILE= in the systemd unit)"},
		{"fixed beyond the rest is refused", 1024, needs{pools: []int{60}, loops: 2, vips: vipsOf(1000)}, 115, nil, false, "at least 1115 are needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := divide(c.limit, c.needs)
			if b.reserve != c.reserve {
				t.Errorf("reserve %d, want %d", b.reserve, c.reserve)
			}
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("error %v, want %s", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.caps, b.caps); diff != "" {
				t.Error(diff)
			}
			if (len(b.warnings) > 0) != c.warned {
				t.Errorf("warnings %q", b.warnings)
			}
			total := b.reserve
			for _, n := range b.caps {
				total += n
			}
			if total > c.limit {
				t.Errorf("%d handed out of %d", total, c.limit)
			}
		})
	}
}
