package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Faults are what a [FaultProxy] does to connections. The zero value forwards everything as it comes. Those of Up, Down and
// HalfOpen hold for open connections, too, from the moment they are set.
type Faults struct {
	Up   Path // from clients to the target
	Down Path // from the target to clients
	// Refuse stops listening: connections are refused, open ones stay.
	Refuse bool
	// Reset ends new connections with RST as soon as they are accepted.
	Reset bool
	// HalfOpen keeps ends from being passed on: when one side closes or resets, the other is not told and its connection
	// stays, dead.
	HalfOpen bool
}

// Path is what happens to the bytes of one direction.
type Path struct {
	Delay time.Duration // bytes arrive this much later; as many may be under way as ever
	Drop  bool          // bytes, and ends, disappear: a black hole
	Rate  int           // bytes per second and connection; 0: as fast as they come
	// Cut ends a connection, both sides of it, once CutAt bytes of it have passed in this direction and another one comes;
	// with RST when CutReset is set, else with FIN.
	Cut      bool
	CutAt    int64
	CutReset bool
}

// FaultProxy is a TCP proxy before a broker, Consul or anything else that plants faults, which may be changed at any time.
type FaultProxy struct {
	target  string
	addr    string
	release func() // gives the port back
	ctx     context.Context
	stop    context.CancelFunc
	served  sync.WaitGroup

	mu       sync.Mutex
	faults   Faults
	changed  chan struct{} // closed by the next Set
	listener net.Listener  // nil while refusing
	open     map[*proxied]bool

	accepted atomic.Int64
	up, down atomic.Int64
}

// StartFaultProxy starts a proxy to target, host:port, on a loopback address. The caller must Close it.
func StartFaultProxy(target string) (*FaultProxy, error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("lab: fault proxy: target: %w", err)
	}
	port, release, err := ReservePort(loopback)
	if err != nil {
		return nil, err
	}
	p := &FaultProxy{target: target, addr: hostPort(loopback, port), release: release, changed: make(chan struct{}), open: map[*proxied]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.listen(); err != nil {
		p.stop()
		release()
		return nil, err
	}
	return p, nil
}

// Addr is the host:port on which it listens.
func (p *FaultProxy) Addr() string { return p.addr }

// Connections is how many connections it has accepted so far.
func (p *FaultProxy) Connections() int64 { return p.accepted.Load() }

// Bytes is how many bytes it has passed on so far, to the target and to clients.
func (p *FaultProxy) Bytes() (up, down int64) { return p.up.Load(), p.down.Load() }

// Set changes the faults. Its error says that it cannot listen again.
func (p *FaultProxy) Set(f Faults) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return errors.New("lab: the fault proxy is closed")
	}
	p.faults = f
	close(p.changed)
	p.changed = make(chan struct{})
	switch {
	case f.Refuse && p.listener != nil:
		_ = p.listener.Close()
		p.listener = nil
	case !f.Refuse && p.listener == nil:
		return p.listen()
	}
	return nil
}

// ResetAll ends all open connections with RST, on both sides.
func (p *FaultProxy) ResetAll() { p.each(func(c *proxied) { c.end(true) }) }

// CloseTargets closes the target's side of all open connections, as a broker does that stops. Clients are told, unless
// HalfOpen is set.
func (p *FaultProxy) CloseTargets() { p.each(func(c *proxied) { _ = c.target.Close() }) }

func (p *FaultProxy) each(f func(*proxied)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		f(c)
	}
}

// Close ends every connection and returns when nothing of the proxy is left.
func (p *FaultProxy) Close() error {
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		return nil
	}
	p.stop()
	if p.listener != nil {
		_ = p.listener.Close()
	}
	for c := range p.open {
		c.end(false)
	}
	p.mu.Unlock()
	p.served.Wait()
	p.release()
	return nil
}

// listen is called with mu held.
func (p *FaultProxy) listen() error {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("lab: fault proxy: %w", err)
	}
	p.listener = l
	p.served.Go(func() {
		acceptAll(p.ctx, l, func(c *net.TCPConn) {
			p.accepted.Add(1)
			p.served.Go(func() { p.serve(c) })
		})
	})
	return nil
}

// acceptAll hands over connections until l is closed.
func acceptAll(ctx context.Context, l net.Listener, take func(*net.TCPConn)) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			take(c.(*net.TCPConn))
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors: the queue waits
			if sleep(ctx, 10*time.Millisecond) != nil {
				return
			}
		}
	}
}

func (p *FaultProxy) current() (Faults, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults, p.changed
}

// proxied is one connection with both its sides.
type proxied struct {
	client, target *net.TCPConn
	ctx            context.Context
	cancel         context.CancelFunc
}

// end closes both sides.
func (c *proxied) end(reset bool) {
	for _, side := range []*net.TCPConn{c.client, c.target} {
		if reset {
			_ = side.SetLinger(0)
		}
		_ = side.Close()
	}
	c.cancel()
}

func (p *FaultProxy) serve(client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	if f, _ := p.current(); f.Reset {
		_ = client.SetLinger(0)
		return
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		_ = client.SetLinger(0) // the nearest to a refusal that is left
		return
	}
	c := &proxied{client: client, target: conn.(*net.TCPConn)}
	c.ctx, c.cancel = context.WithCancel(p.ctx)
	p.mu.Lock()
	p.open[c] = true
	closed := p.ctx.Err() != nil
	p.mu.Unlock()
	if closed {
		c.end(false)
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(c, c.client, c.target, func(f Faults) Path { return f.Up }, &p.up) })
	both.Go(func() { p.pass(c, c.target, c.client, func(f Faults) Path { return f.Down }, &p.down) })
	both.Wait()
	c.end(false)
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}

// chunk is bytes under way, or with no bytes the end of what a side sends.
type chunk struct {
	bytes []byte
	read  time.Time
	reset bool // the end came as an error
}

// underWay is how many chunks a delay may hold; beyond it the sender is not read from, as in a full socket buffer.
const underWay = 4096

// pass forwards one direction until it ends.
func (p *FaultProxy) pass(c *proxied, from, to *net.TCPConn, path func(Faults) Path, count *atomic.Int64) {
	queue := make(chan chunk, underWay)
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		defer close(queue)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			next := chunk{bytes: b[:n], read: time.Now()}
			if err != nil && n == 0 {
				next.bytes, next.reset = nil, !isEOF(err)
			}
			select {
			case queue <- next:
			case <-c.ctx.Done():
				return
			}
			if next.bytes == nil {
				return
			}
		}
	})
	passed := int64(0)
	for next := range queue {
		if !p.wait(c.ctx, next.read, path) {
			return
		}
		if next.bytes == nil {
			p.passEnd(c, to, next.reset, path)
			return
		}
		if !p.passBytes(c, to, next.bytes, &passed, path, count) {
			return
		}
	}
}

// wait returns when bytes read at a time are due; false when the connection ends before.
func (p *FaultProxy) wait(ctx context.Context, read time.Time, path func(Faults) Path) bool {
	for {
		f, changed := p.current()
		left := time.Until(read.Add(path(f).Delay))
		if left <= 0 {
			return ctx.Err() == nil
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
}

// passBytes writes bytes as the faults of the moment let it; false when the connection is over.
func (p *FaultProxy) passBytes(c *proxied, to *net.TCPConn, b []byte, passed *int64, path func(Faults) Path, count *atomic.Int64) bool {
	for len(b) > 0 {
		f, changed := p.current()
		now := path(f)
		if now.Drop {
			return true
		}
		piece := b
		if now.Rate > 0 {
			piece = b[:min(len(b), max(1, now.Rate/50))] // 50 pieces a second look like a slow line
		}
		if now.Cut {
			left := now.CutAt - *passed
			if left <= 0 {
				c.end(now.CutReset)
				return false
			}
			piece = piece[:min(int64(len(piece)), left)]
		}
		n, err := to.Write(piece)
		*passed += int64(n)
		count.Add(int64(n))
		if err != nil {
			if !f.HalfOpen {
				c.end(true)
				return false
			}
			return true // nobody is told
		}
		b = b[n:]
		if now.Rate > 0 {
			t := time.NewTimer(time.Duration(n) * time.Second / time.Duration(now.Rate))
			select {
			case <-t.C:
			case <-changed:
			case <-c.ctx.Done():
			}
			t.Stop()
		}
		if c.ctx.Err() != nil {
			return false
		}
	}
	return true
}

// passEnd tells the other side that this one has ended, unless a fault keeps it secret; then the connection waits for its
// end, or for the fault's.
func (p *FaultProxy) passEnd(c *proxied, to *net.TCPConn, reset bool, path func(Faults) Path) {
	for {
		f, changed := p.current()
		if !f.HalfOpen && !path(f).Drop {
			break
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return
		}
	}
	if reset {
		c.end(true)
		return
	}
	_ = to.CloseWrite()
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) }
