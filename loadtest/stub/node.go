package stub

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxFrame is the longest request that is read, in bytes.
const maxFrame = 4 << 20

// node is one broker's listener.
type node struct {
	cluster *Cluster
	ln      net.Listener
	addr    string
	port    int32
	view    atomic.Pointer[view]
	queue   queue
	wg      sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	frozen chan struct{} // nil, or closed once the broker thaws
}

// queue is a broker that serves one request after the other.
type queue struct {
	rate   float64 // a second; 0: no limit
	served atomic.Uint64

	mu   sync.Mutex
	free time.Time // when it has served all that came so far
}

// wait returns once the request that has come is served.
func (q *queue) wait() {
	if q.rate > 0 {
		q.mu.Lock()
		if now := time.Now(); q.free.Before(now) {
			q.free = now
		}
		q.free = q.free.Add(time.Duration(float64(time.Second) / q.rate))
		until := q.free
		q.mu.Unlock()
		time.Sleep(time.Until(until))
	}
	q.served.Add(1)
}

func (c *Cluster) listen(host string) (*node, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("stub: %w", err)
	}
	n := &node{cluster: c, ln: ln, addr: ln.Addr().String(), port: int32(ln.Addr().(*net.TCPAddr).Port), conns: map[net.Conn]struct{}{}}
	c.nodes = append(c.nodes, n)
	return n, nil
}

// learn takes a view over unless a newer one is known already.
func (n *node) learn(v *view) {
	for {
		old := n.view.Load()
		if old != nil && old.number >= v.number || n.view.CompareAndSwap(old, v) {
			return
		}
	}
}

func (n *node) serve() {
	ln := n.ln
	n.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			if n.closed {
				n.mu.Unlock()
				_ = c.Close()
				return
			}
			n.conns[c] = struct{}{}
			n.wg.Go(func() {
				_ = n.client(c) // whatever ends it, it is over
				_ = c.Close()
				n.mu.Lock()
				delete(n.conns, c)
				n.mu.Unlock()
			})
			n.mu.Unlock()
		}
	})
}

// restart listens again after close.
func (n *node) restart() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		return fmt.Errorf("stub: %s is up", n.addr)
	}
	ln, err := net.Listen("tcp", n.addr)
	if err != nil {
		return fmt.Errorf("stub: %w", err)
	}
	n.ln, n.closed = ln, false
	n.serve()
	return nil
}

func (n *node) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen == nil {
		n.frozen = make(chan struct{})
	}
}

func (n *node) thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen != nil {
		close(n.frozen)
		n.frozen = nil
	}
}

// awake waits while the broker is frozen.
func (n *node) awake() {
	n.mu.Lock()
	frozen := n.frozen
	n.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// close resets every connection and listens no more.
func (n *node) close() {
	n.thaw()
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.ln.Close()
	n.closed = true
	for c := range n.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// client answers one connection's requests in their order.
func (n *node) client(c net.Conn) error {
	in := bufio.NewReader(c)
	var frame []byte
	for {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		size := int32(binary.BigEndian.Uint32(head[:]))
		if size < 8 || size > maxFrame {
			return fmt.Errorf("a request of %d bytes", size)
		}
		if cap(frame) < int(size) {
			frame = make([]byte, size)
		}
		frame = frame[:size]
		if _, err := io.ReadFull(in, frame); err != nil {
			return err
		}
		n.awake()
		body, err := n.answer(frame)
		if err != nil {
			return err
		}
		out := binary.BigEndian.AppendUint32(make([]byte, 0, 8), uint32(4+len(body)))
		out = append(out, frame[4:8]...) // correlation id
		if _, err := (&net.Buffers{out, body}).WriteTo(c); err != nil {
			return err
		}
	}
}

var errUnknown = errors.New("a request that the stub does not know")

// answer returns what follows the correlation id.
func (n *node) answer(frame []byte) ([]byte, error) {
	key, version := int16(binary.BigEndian.Uint16(frame)), int16(binary.BigEndian.Uint16(frame[2:]))
	var q kmsg.Request
	var most int16
	switch key {
	case 18:
		return apiVersions(version), nil
	case 3:
		q, most = kmsg.NewPtrMetadataRequest(), maxMetadata
	case 10:
		q, most = kmsg.NewPtrFindCoordinatorRequest(), maxCoordinator
	case 60:
		q, most = kmsg.NewPtrDescribeClusterRequest(), maxDescribe
	default:
		return nil, errUnknown
	}
	if version < 0 || version > most {
		return nil, errUnknown
	}
	q.SetVersion(version)
	r := kbin.Reader{Src: frame[8:]}
	r.NullableString() // client id
	if q.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	if err := r.Complete(); err != nil {
		return nil, err
	}
	if err := q.ReadFrom(r.Src); err != nil {
		return nil, err
	}
	v := n.view.Load()
	switch q := q.(type) {
	case *kmsg.MetadataRequest:
		if version == 0 && v.offline {
			return nil, errUnknown
		}
		switch {
		case q.Topics == nil:
			n.cluster.Asked.All.Add(1)
		case len(q.Topics) == 0:
			n.cluster.Asked.None.Add(1)
		default:
			n.cluster.Asked.Named.Add(1)
			n.queue.wait()
		}
		return v.metadata(q), nil
	case *kmsg.FindCoordinatorRequest:
		n.queue.wait()
		return v.coordinator(q), nil
	case *kmsg.DescribeClusterRequest:
		return v.describe(q), nil
	}
	return nil, errUnknown
}
