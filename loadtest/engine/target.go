package engine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Target is a resolved address to connect to.
type Target struct {
	Addr netip.AddrPort
	sa   unix.Sockaddr
	fam  int
}

// Resolve turns host:port into a target: the first address of the host.
func Resolve(ctx context.Context, hostport string) (*Target, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("target %q: want host:port: %w", hostport, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("target %q: %q is no port", hostport, port)
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, fmt.Errorf("target %q: %w", hostport, err)
		}
		addr = found[0]
	}
	return NewTarget(netip.AddrPortFrom(addr.Unmap(), uint16(number))), nil
}

// NewTarget returns the target for an address.
func NewTarget(a netip.AddrPort) *Target {
	t := &Target{Addr: a}
	t.sa, t.fam = sockaddr(a)
	return t
}

func sockaddr(a netip.AddrPort) (unix.Sockaddr, int) {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}, unix.AF_INET6
}

// Sources hands out local addresses in turn. The zero value leaves the choice to the kernel. Not for concurrent use: each
// loop has its own.
type Sources struct {
	addrs []unix.Sockaddr
	next  int
}

// NewSources takes count addresses from prefix, beginning with its first address plus skip, so that several loops or
// processes can share a prefix without sharing addresses.
func NewSources(prefix netip.Prefix, skip, count int) (Sources, error) {
	if !prefix.Addr().Is4() {
		return Sources{}, fmt.Errorf("sources %s: only IPv4 prefixes", prefix)
	}
	if room := 1 << (32 - prefix.Bits()); count < 1 || skip < 0 || skip+count >= room {
		return Sources{}, fmt.Errorf("sources %s: %d addresses after %d do not fit", prefix, count, skip)
	}
	base := prefix.Masked().Addr().As4()
	start := uint32(base[0])<<24 | uint32(base[1])<<16 | uint32(base[2])<<8 | uint32(base[3])
	s := Sources{}
	for i := range uint32(count) {
		n := start + uint32(skip) + 1 + i // the prefix's own address is left out
		a := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		sa, _ := sockaddr(netip.AddrPortFrom(a, 0))
		s.addrs = append(s.addrs, sa)
	}
	return s, nil
}

// Next is the next address in turn; nil leaves it to the kernel.
func (s *Sources) Next() unix.Sockaddr {
	if len(s.addrs) == 0 {
		return nil
	}
	a := s.addrs[s.next]
	if s.next++; s.next == len(s.addrs) {
		s.next = 0
	}
	return a
}
