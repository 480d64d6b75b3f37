package front

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/panjf2000/gnet/v2"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// bind takes the port before gnet does. gnet's own sockets share it (SO_REUSEPORT), so a port that another process holds
// would go unnoticed, and port 0 would give each loop another one: first an exclusive bind tells whether the port is free,
// then a shared one holds it until gnet listens.
func bind(addr string, share bool) (net.Listener, error) {
	listen := func(opts ...int) (net.Listener, error) {
		lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
			cerr := rc.Control(func(fd uintptr) {
				for _, o := range opts {
					if err == nil {
						err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o, 1)
					}
				}
			})
			if err == nil {
				err = cerr
			}
			return err
		}}
		return lc.Listen(context.Background(), network(addr), addr)
	}
	if !share {
		ln, err := listen(unix.SO_REUSEADDR)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", addr, err)
		}
		addr = ln.Addr().String()
		_ = ln.Close()
	}
	ln, err := listen(unix.SO_REUSEADDR, unix.SO_REUSEPORT)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

// network is tcp4 for an IPv4 address: with tcp, Go takes 0.0.0.0 for every address of both kinds and calls it [::].
func network(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
		return "tcp4"
	}
	return "tcp"
}

// engineAddr is how gnet is told to listen on addr: it takes [::] for IPv6 alone, and no host at all for every address of
// both kinds, as everybody else takes both.
func engineAddr(addr string) string {
	if host, port, err := net.SplitHostPort(addr); err == nil && host == "::" {
		return ":" + port
	}
	return addr
}

// peerOf returns the peer's address, IPv4 in its own form.
func peerOf(g gnet.Conn) netip.AddrPort {
	if a, ok := g.RemoteAddr().(*net.TCPAddr); ok {
		p := a.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return netip.AddrPort{}
}

// quietLogger passes gnet's warnings and errors on; its other lines say nothing to an operator.
type quietLogger struct{ *zap.SugaredLogger }

func (quietLogger) Debugf(string, ...any) {}
func (quietLogger) Infof(string, ...any)  {}
