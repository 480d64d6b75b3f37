package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options say how a Pool keeps its connections. Zero values mean the defaults.
type Options struct {
	// MaxConns bounds the connections to one broker (16).
	MaxConns int
	// MaxTotal bounds the connections to all brokers together (256). Where one more is needed the one that has been idle
	// longest makes room.
	MaxTotal int
	// MaxWaiting bounds the requests that wait for a connection, over all brokers (1,024).
	MaxWaiting int
	// MaxAnswer bounds one answer in bytes (DefaultMaxAnswer).
	MaxAnswer int
	// Idle is how long an unused connection is kept (5 min; a broker closes it after 10).
	Idle time.Duration
	// DialTimeout bounds a connect within the request's own time (250 ms: a lost SYN is sent again after 1 s).
	DialTimeout time.Duration
	// Dial connects (a TCP dial).
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Check, if any, is run on each new connection before its first request; an error closes it.
	Check func(ctx context.Context, addr string, c *Conn) error
	// Connected, if any, is told of each attempt to connect, the check included, that the broker had its time for.
	Connected func(addr string, err error)
}

// What a request can fail with before it is sent.
var (
	// ErrUnregistered: the address is not one of those that Keep was given.
	ErrUnregistered = errors.New("not a registered broker")
	// ErrFull: MaxWaiting requests wait already, or MaxTotal connections are in use.
	ErrFull = errors.New("too many requests wait for a connection")
)

// NotSentError wraps an error that came before any byte of the request was written: the request may be sent elsewhere
// whatever it asks for.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return e.Err.Error() }
func (e *NotSentError) Unwrap() error { return e.Err }

// Pool keeps the connections to a set of brokers.
type Pool struct {
	o       Options
	waiting atomic.Int64

	mu      sync.Mutex
	brokers map[string]*broker
	open    int // over all brokers, forgotten ones included
	closed  bool
}

// broker is one address; the fields after mu belong to Pool.mu.
type broker struct {
	addr     string
	slots    chan struct{} // one token for each connection in use
	gone     chan struct{} // closed when the broker is no longer kept
	inflight atomic.Int64
	// load counts those in flight and those that wait for a slot.
	load *atomic.Int64

	idle []*Conn // last used last
	open int     // connections open or being opened
	left bool
}

// New makes a Pool that knows no broker yet.
func New(o Options) *Pool {
	if o.MaxConns <= 0 {
		o.MaxConns = 16
	}
	if o.MaxTotal <= 0 {
		o.MaxTotal = 256
	}
	if o.MaxWaiting <= 0 {
		o.MaxWaiting = 1024
	}
	if o.Idle <= 0 {
		o.Idle = 5 * time.Minute
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = 250 * time.Millisecond
	}
	if o.Dial == nil {
		var d net.Dialer
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	return &Pool{o: o, brokers: map[string]*broker{}}
}

// Keep names the only brokers that are dialled from now on. Connections to others are closed, at once when idle, else when
// their request is answered.
func (p *Pool) Keep(addrs []string) {
	keep := make(map[string]bool, len(addrs))
	for _, a := range addrs {
		keep[a] = true
	}
	var idle []*Conn
	p.mu.Lock()
	for addr, b := range p.brokers {
		if !keep[addr] {
			idle = append(idle, p.drop(b)...)
		}
	}
	for addr := range keep {
		if p.brokers[addr] == nil && !p.closed {
			p.brokers[addr] = &broker{
				addr: addr, slots: make(chan struct{}, p.o.MaxConns), gone: make(chan struct{}), load: new(atomic.Int64),
			}
		}
	}
	p.mu.Unlock()
	closeAll(idle)
}

// drop forgets b and returns its idle connections; the caller holds mu.
func (p *Pool) drop(b *broker) []*Conn {
	idle := b.idle
	b.idle, b.left = nil, true
	p.lost(b, len(idle))
	close(b.gone)
	delete(p.brokers, b.addr)
	return idle
}

// Close closes idle connections at once and those in use when their request is answered; nothing is sent any more.
func (p *Pool) Close() {
	var idle []*Conn
	p.mu.Lock()
	p.closed = true
	for _, b := range p.brokers {
		idle = append(idle, p.drop(b)...)
	}
	p.mu.Unlock()
	closeAll(idle)
}

// Sweep closes the connections that nobody used for a while. The owner calls it now and then.
func (p *Pool) Sweep() {
	before := time.Now().Add(-p.o.Idle)
	var old []*Conn
	p.mu.Lock()
	for _, b := range p.brokers {
		n := 0
		for n < len(b.idle) && b.idle[n].idle.Before(before) {
			n++
		}
		old = append(old, b.idle[:n]...)
		b.idle = slices.Delete(b.idle, 0, n)
		p.lost(b, n)
	}
	p.mu.Unlock()
	closeAll(old)
}

func closeAll(conns []*Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// Do sends frame to the broker at addr and returns its answer, as Conn.RoundTrip does. ctx bounds waiting, dialling and
// the exchange together. resend allows a second sending, on a new connection to the same broker, when a kept connection
// turns out dead before any byte of an answer came: for requests that change nothing.
func (p *Pool) Do(ctx context.Context, addr string, frame []byte, resend bool) ([]byte, error) {
	return p.DoInto(ctx, addr, frame, resend, nil)
}

// DoInto is Do for a caller that is done with the last answer: the answer is read into buf if buf has room for it.
func (p *Pool) DoInto(ctx context.Context, addr string, frame []byte, resend bool, buf []byte) ([]byte, error) {
	b := p.broker(addr)
	if b == nil {
		return nil, &NotSentError{fmt.Errorf("%s: %w", addr, ErrUnregistered)}
	}
	b.load.Add(1)
	defer b.load.Add(-1)
	if err := p.acquire(ctx, b); err != nil {
		return nil, &NotSentError{fmt.Errorf("%s: %w", addr, err)}
	}
	b.inflight.Add(1)
	defer func() {
		b.inflight.Add(-1)
		<-b.slots
	}()
	c := p.takeIdle(b)
	for kept := c != nil; ; kept, c = false, nil {
		if c == nil {
			var err error
			if c, err = p.dial(ctx, b); err != nil {
				return nil, &NotSentError{fmt.Errorf("%s: %w", addr, late(ctx, err))}
			}
		}
		answer, wrote, got, err := c.roundTrip(ctx, frame, buf)
		if err == nil {
			p.put(b, c)
			return answer, nil
		}
		p.forget(b)
		if kept && !got && (resend || !wrote) && !errors.Is(err, ErrLate) && ctx.Err() == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", addr, err)
		if !wrote {
			err = &NotSentError{err}
		}
		return nil, err
	}
}

// late turns an error that the end of ctx caused into ErrLate.
func late(ctx context.Context, err error) error {
	if ctx.Err() == context.DeadlineExceeded {
		return ErrLate
	}
	return err
}

func (p *Pool) broker(addr string) *broker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.brokers[addr]
}

// acquire takes one of the broker's slots.
func (p *Pool) acquire(ctx context.Context, b *broker) error {
	select {
	case b.slots <- struct{}{}:
		return nil
	default:
	}
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > int64(p.o.MaxWaiting) {
		return ErrFull
	}
	select {
	case b.slots <- struct{}{}:
		return nil
	case <-b.gone:
		return ErrUnregistered
	case <-ctx.Done():
		return late(ctx, ctx.Err())
	}
}

// takeIdle returns the idle connection that was used last, or nil when none is alive.
func (p *Pool) takeIdle(b *broker) *Conn {
	for {
		p.mu.Lock()
		n := len(b.idle)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		c := b.idle[n-1]
		b.idle = b.idle[:n-1]
		p.mu.Unlock()
		if c.alive() {
			return c
		}
		c.Close()
		p.forget(b)
	}
}

func (p *Pool) dial(ctx context.Context, b *broker) (*Conn, error) {
	old, err := p.room(b)
	if old != nil {
		old.Close()
	}
	if err != nil {
		return nil, err
	}
	c, err := p.connect(ctx, b.addr)
	if err != nil {
		p.forget(b)
	}
	// A client that goes, or that had little time left, says nothing about the broker.
	if p.o.Connected != nil && (err == nil || ctx.Err() == nil) {
		p.o.Connected(b.addr, err)
	}
	return c, err
}

// room counts one more connection to b, in place of another one if need be, which is to be closed.
func (p *Pool) room(b *broker) (old *Conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.left {
		return nil, ErrUnregistered
	}
	if p.open >= p.o.MaxTotal {
		var of *broker
		for _, o := range p.brokers {
			if len(o.idle) > 0 && (of == nil || o.idle[0].idle.Before(of.idle[0].idle)) {
				of = o
			}
		}
		if of == nil {
			return nil, ErrFull
		}
		old = of.idle[0]
		of.idle = slices.Delete(of.idle, 0, 1)
		p.lost(of, 1)
	}
	b.open++
	p.open++
	return old, nil
}

func (p *Pool) connect(ctx context.Context, addr string) (*Conn, error) {
	dctx, cancel := context.WithTimeout(ctx, p.o.DialTimeout)
	defer cancel()
	nc, err := p.o.Dial(dctx, addr)
	if err != nil {
		return nil, err
	}
	c := NewConn(nc, p.o.MaxAnswer)
	if p.o.Check != nil {
		if err := p.o.Check(ctx, addr, c); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

func (p *Pool) put(b *broker, c *Conn) {
	c.idle = time.Now()
	p.mu.Lock()
	if b.left {
		p.lost(b, 1)
		p.mu.Unlock()
		c.Close()
		return
	}
	b.idle = append(b.idle, c)
	p.mu.Unlock()
}

// forget counts a connection that was closed.
func (p *Pool) forget(b *broker) {
	p.mu.Lock()
	p.lost(b, 1)
	p.mu.Unlock()
}

// lost does so for n of them; the caller holds mu.
func (p *Pool) lost(b *broker, n int) {
	b.open -= n
	p.open -= n
}

// InFlight returns how many requests wait for the answer of the broker at addr.
func (p *Pool) InFlight(addr string) int {
	if b := p.broker(addr); b != nil {
		return int(b.inflight.Load())
	}
	return 0
}

// Load returns the counter of the requests that wait for an answer of the broker at addr or for a connection to it; it is
// the same one as long as the broker is kept. nil when it is not.
func (p *Pool) Load(addr string) *atomic.Int64 {
	if b := p.broker(addr); b != nil {
		return b.load
	}
	return nil
}

// Conns returns how many connections to the broker at addr are open or being opened.
func (p *Pool) Conns(addr string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.brokers[addr]; b != nil {
		return b.open
	}
	return 0
}

// Waiting returns how many requests wait for a connection.
func (p *Pool) Waiting() int { return int(p.waiting.Load()) }
