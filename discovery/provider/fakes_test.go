package provider

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// fakeServer answers one protocol on TCP, for as many connections as come, with what a test has it list.
type fakeServer struct {
	net.Listener
	mu    sync.Mutex
	addrs []string
	state string // "", "fail" or "hang"
	of    string // the cluster id, "fake" when empty
	conns map[net.Conn]bool
	// told is called after each change, with the connections that there are.
	told func(conns map[net.Conn]bool)
	all  sync.WaitGroup
}

// serve runs f until the test ends; each connection is one call of handle.
func (f *fakeServer) serve(t *testing.T, handle func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.Listener, f.conns = l, map[net.Conn]bool{}
	f.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns[c] = true
			f.mu.Unlock()
			f.all.Go(func() {
				handle(c)
				f.mu.Lock()
				delete(f.conns, c)
				f.mu.Unlock()
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.mu.Lock()
		for c := range f.conns {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.all.Wait()
	})
}

func (f *fakeServer) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	if f.told != nil {
		f.told(f.conns)
	}
}

func (f *fakeServer) now() (addrs []string, state string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addrs, f.state
}

// registry hands f to the conformance suite.
func (f *fakeServer) registry(config Config) registry {
	return registry{
		config: config,
		lists:  func(addrs ...string) { f.set(func() { f.addrs = addrs }) },
		fail:   func() { f.set(func() { f.state = "fail" }) },
		heal:   func() { f.set(func() { f.state = "" }) },
		hang:   func() { f.set(func() { f.state = "hang" }) },
	}
}

// frame reads a frame with its length in front.
func frame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func framed(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

// startFakeKafka is a broker that lists what it is told to, without node ids that mean anything.
func startFakeKafka(t *testing.T) *fakeServer {
	f := &fakeServer{addrs: []string{"a:1", "b:2"}}
	f.serve(t, func(c net.Conn) {
		for {
			req, err := frame(c)
			addrs, state := f.now()
			f.mu.Lock()
			of := cmp.Or(f.of, "fake")
			f.mu.Unlock()
			if err != nil || state == "fail" {
				return
			}
			if state == "hang" {
				_, _ = io.Copy(io.Discard, c)
				return
			}
			resp := kmsg.NewPtrMetadataResponse()
			resp.Version, resp.ClusterID = kafkaMetadata, kmsg.StringPtr(of)
			for i, a := range addrs {
				host, port, _ := splitAddr(a)
				resp.Brokers = append(resp.Brokers, kmsg.MetadataResponseBroker{NodeID: int32(i), Host: host, Port: int32(port), Rack: kmsg.StringPtr("r1")})
			}
			if _, err := c.Write(framed(resp.AppendTo(req[4:8:8]))); err != nil {
				return
			}
		}
	})
	return f
}

// startFakeZookeeper keeps /brokers/ids with a version 4 node for each address, which is 1, 2, ... by its place.
func startFakeZookeeper(t *testing.T, prefix string) *fakeServer {
	f := &fakeServer{addrs: []string{"a:1", "b:2"}}
	ids := prefix + "/brokers/ids"
	str := func(b []byte, s string) []byte { return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...) }
	reply := func(xid, code uint32) []byte {
		b := binary.BigEndian.AppendUint32(nil, xid)
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, 1), code)
	}
	f.told = func(conns map[net.Conn]bool) {
		if f.state == "hang" {
			return
		}
		for c := range conns { // NodeChildrenChanged, SyncConnected
			b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(reply(0xffffffff, 0), 4), 3)
			_, _ = c.Write(framed(str(b, ids)))
		}
	}
	stat := make([]byte, 68)
	f.serve(t, func(c net.Conn) {
		if _, err := frame(c); err != nil { // ConnectRequest
			return
		}
		if _, state := f.now(); state == "hang" {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		hello := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(make([]byte, 4), 6000), 1)
		_, _ = c.Write(framed(str(hello, strings.Repeat("p", 16))))
		for {
			req, err := frame(c)
			if err != nil {
				return
			}
			addrs, state := f.now()
			xid, op := binary.BigEndian.Uint32(req), int32(binary.BigEndian.Uint32(req[4:]))
			var path string
			if len(req) > 12 {
				path = string(req[12 : 12+binary.BigEndian.Uint32(req[8:])])
			}
			answer := reply(xid, 0)
			switch {
			case state == "hang":
				continue
			case op == 12 && state == "fail":
				answer = reply(xid, 0xffffffff) // SystemError
			case op == 12 && path == ids: // getChildren2
				answer = binary.BigEndian.AppendUint32(answer, uint32(len(addrs)))
				for i := range addrs {
					answer = str(answer, strconv.Itoa(i+1))
				}
				answer = append(answer, stat...)
			case op == 4 && strings.HasPrefix(path, ids+"/"): // getData
				i, _ := strconv.Atoi(path[len(ids)+1:])
				if i > len(addrs) {
					answer = reply(xid, 0xffffff9b) // NoNode
					break
				}
				answer = append(str(answer, fmt.Sprintf(`{"listener_security_protocol_map":{"CLIENT":"PLAINTEXT","TLS":"SSL"},`+
					`"endpoints":["TLS://x:9","CLIENT://%s"],"rack":"r1","jmx_port":-1,"host":null,"timestamp":"1","port":-1,"version":4}`, addrs[i-1])), stat...)
			case op == 4 || op == 12:
				answer = reply(xid, 0xffffff9b)
			}
			if _, err := c.Write(framed(answer)); err != nil || op == -11 {
				return
			}
		}
	})
	return f
}

// fakeDNS answers queries over UDP: A and AAAA with the hosts of addrs, SRV with addrs, of which the one that ends in
// :priority N is a backup.
type fakeDNS struct {
	net.PacketConn
	mu      sync.Mutex
	addrs   []string
	state   string // "", "fail", "hang", "none"
	weights map[string]uint16
	backups map[string]bool
	ttl     uint32
	queries int
	done    chan struct{}
}

func startFakeDNS(t *testing.T, addrs ...string) *fakeDNS {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeDNS{PacketConn: c, addrs: addrs, ttl: 1, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		b := make([]byte, 4096)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if answer := f.answer(b[:n]); answer != nil {
				_, _ = c.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-f.done })
	return f
}

func (f *fakeDNS) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// answer writes the message of RFC 1035, section 4.1.
func (f *fakeDNS) answer(q []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queries++
	if f.state == "hang" {
		return nil
	}
	end := 12
	for q[end] != 0 {
		end += int(q[end]) + 1
	}
	end++
	kind := binary.BigEndian.Uint16(q[end:])
	flags := uint16(0x8580)
	switch f.state {
	case "fail":
		flags |= 2 // SERVFAIL
	case "none":
		flags |= 3 // NXDOMAIN
	}
	out := append([]byte{}, q[:2]...)
	out = binary.BigEndian.AppendUint16(out, flags)
	out = append(out, 0, 1, 0, 0, 0, 0, 0, 0)
	out = append(out, q[12:end+4]...)
	count := uint16(0)
	add := func(data []byte) {
		count++
		out = append(out, 0xc0, 12)
		out = binary.BigEndian.AppendUint16(out, kind)
		out = binary.BigEndian.AppendUint32(append(out, 0, 1), f.ttl) // IN
		out = binary.BigEndian.AppendUint16(out, uint16(len(data)))
		out = append(out, data...)
	}
	for _, a := range f.addrs {
		if flags&0xf != 0 {
			break
		}
		host, p, _ := net.SplitHostPort(a)
		port, _ := strconv.Atoi(p)
		ip, err := netip.ParseAddr(host)
		switch {
		case kind == 33:
			priority := uint16(1)
			if f.backups[a] {
				priority = 2
			}
			data := binary.BigEndian.AppendUint16(nil, priority)
			data = binary.BigEndian.AppendUint16(data, f.weights[a])
			data = binary.BigEndian.AppendUint16(data, uint16(port))
			for label := range strings.FieldsFuncSeq(host, func(r rune) bool { return r == '.' }) {
				data = append(append(data, byte(len(label))), label...)
			}
			add(append(data, 0))
		case err == nil && (kind == 1) == ip.Is4() && (kind == 28) == ip.Is6():
			add(ip.AsSlice())
		}
	}
	binary.BigEndian.PutUint16(out[6:], count)
	return out
}

// replace writes a file as it should be: another one, renamed.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func brokersFile(t *testing.T) string { return filepath.Join(t.TempDir(), "brokers.yaml") }

func listText(addrs ...string) string {
	var b strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&b, "- %q\n", a)
	}
	return b.String()
}
