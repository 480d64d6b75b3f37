package forward

import (
	"net/netip"

	"github.com/cespare/xxhash/v2"
)

// ClientKey is what policies tell a client apart by: 48 bits of a hash of its address, and its port in the lowest 16.
// An IPv4 address has the same key however it is written.
func ClientKey(peer netip.AddrPort) uint64 {
	addr := peer.Addr().As16()
	return xxhash.Sum64(addr[:])&^0xffff | uint64(peer.Port())
}
