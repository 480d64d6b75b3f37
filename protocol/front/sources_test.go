package front

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvip/kvip/protocol/session"
)

// An address's own closes are kept through a storm of others, those for a reason apart from those by itself.
func TestLastClosesOfAnAddress(t *testing.T) {
	s := newSources()
	start := time.Unix(1_700_000_000, 0)
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Second) }
	me := netip.MustParseAddrPort("[::ffff:10.1.2.3]:4000")
	s.add(closed{at: at(0), peer: me, reason: session.ReasonTLS, requests: 1, age: 1500 * time.Microsecond})
	for i := range 10 {
		s.add(closed{at: at(1 + i), peer: me, reason: session.ReasonClient, requests: uint64(i)})
	}
	for i := range sourceBuckets / 16 { // few enough that no bucket overflows
		s.add(closed{at: at(20), peer: netip.MustParseAddrPort(fmt.Sprintf("10.9.%d.%d:1", i>>8, i&255)), reason: session.ReasonIdle})
	}
	var got []string
	for _, c := range s.read(netip.MustParseAddr("10.1.2.3")) {
		got = append(got, fmt.Sprintf("%v %v %s %d %s", c.At.Sub(start), c.Peer, c.Reason, c.Requests, c.Age))
	}
	want := []string{"10s 10.1.2.3:4000 client 9 0s", "9s 10.1.2.3:4000 client 8 0s", "8s 10.1.2.3:4000 client 7 0s", "0s 10.1.2.3:4000 tls 1 2ms"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := s.read(netip.MustParseAddr("10.1.2.4")); len(got) != 0 {
		t.Errorf("of an address that never was here: %v", got)
	}
	if n := testing.AllocsPerRun(1000, func() { s.add(closed{at: start, peer: me, reason: session.ReasonIdle}) }); n != 0 {
		t.Errorf("%v allocations a close", n)
	}
}

func BenchmarkSourceAdd(b *testing.B) {
	s := newSources()
	me := netip.MustParseAddrPort("10.1.2.3:4000")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.add(closed{at: time.Unix(1, 0), peer: me, reason: session.ReasonClient})
		}
	})
}
