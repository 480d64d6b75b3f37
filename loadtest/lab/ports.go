package lab

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Ports come from below Linux's ephemeral range (32768-60999): no outgoing connection, of which load tests make tens of
// thousands, can sit on the port of a broker that is down for a moment.
const firstPort, lastPort = 20000, 31999

// ReservePort returns a TCP port on which nothing listens at host and which no other user of the lab on this machine
// gets until release is called or this process dies.
func ReservePort(host string) (port int, release func(), err error) {
	cache, err := CacheDir()
	if err != nil {
		return 0, nil, err
	}
	// One byte of one file per port, locked through an open file description of its own.
	f, err := os.OpenFile(filepath.Join(cache, "ports.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return 0, nil, fmt.Errorf("lab: reserve a port: %w", err)
	}
	n := lastPort - firstPort + 1
	start := rand.IntN(n)
	for i := range n {
		port := firstPort + (start+i)%n
		at := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(port), Len: 1}
		if unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &at) != nil {
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port, func() { _ = f.Close() }, nil
		}
		at.Type = unix.F_UNLCK
		_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &at)
	}
	_ = f.Close()
	return 0, nil, fmt.Errorf("lab: no free TCP port between %d and %d on %s: is that an address of this machine?", firstPort, lastPort, host)
}

// ports is what one running thing has reserved.
type ports struct{ releases []func() }

func (p *ports) reserve(host string) (int, error) {
	port, release, err := ReservePort(host)
	if err == nil {
		p.releases = append(p.releases, release)
	}
	return port, err
}

func (p *ports) release() {
	for _, r := range p.releases {
		r()
	}
	p.releases = nil
}
