package forward

import (
	"net/netip"
	"testing"
)

// Whom a client gets must not change with a kvip that replaces another, so the key is fixed by vectors.
func TestClientKey(t *testing.T) {
	for peer, want := range map[string]uint64{
		"192.0.2.1:50000":          0xde3cbbe5a224c350,
		"[::ffff:192.0.2.1]:50000": 0xde3cbbe5a224c350,
		"192.0.2.1:50001":          0xde3cbbe5a224c351,
		"[2001:db8::1]:1":          0x97f11e0685f60001,
	} {
		if got := ClientKey(netip.MustParseAddrPort(peer)); got != want {
			t.Errorf("the key of %s is %#016x, want %#016x", peer, got, want)
		}
	}
}
