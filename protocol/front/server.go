// Package front is the VIP's listener: a gnet engine whose event loops accept connections, drive a session for each, and
// write the answers. It is the only package that knows gnet. Connections are capped below the descriptor limit, because
// gnet ends its whole engine when accept fails (docs/adr/0001).
package front

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
	"github.com/kvip/kvip/protocol/session"
)

// tickEvery is how often deadlines are looked at.
const tickEvery = 100 * time.Millisecond

// Config is one VIP's listener.
type Config struct {
	// Name labels metrics.
	Name string
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// LookupForward sends each lookup to a broker; ForwardWrites lets requests that change the cluster through.
	LookupForward, ForwardWrites bool
	// MaxConns caps the connections: above it, newcomers take the place of whoever needs theirs least, or are reset.
	MaxConns int
	// Loops is the number of event loops; 0 means one for each processor.
	Loops int
	// SharePort lets several processes listen on the same port.
	SharePort bool
	Limits    Limits
}

// Server is one VIP. Its life is New, Run, Drain, Stop.
type Server struct {
	gnet.BuiltinEventEngine
	cfg    Config
	limits Limits
	drowse time.Duration // how exact the idle times are
	log    *zap.Logger
	vip    session.VIP

	addr     string
	probe    net.Listener // holds the port until gnet listens
	engine   gnet.Engine
	booted   chan struct{}
	stopping atomic.Bool
	draining atomic.Bool

	mu    sync.Mutex
	loops atomic.Pointer[[]*loop]

	conns     atomic.Int64
	most      atomic.Int64    // the cap on conns
	buffered  atomic.Int64    // bytes that wait unserved, of all connections
	closes    []atomic.Uint64 // by session.Reason
	sources   *sources
	writable  *writable
	finishing sync.WaitGroup
	finishers sync.Map // *finisher: net.Conn, cut by Stop
	finished  session.Stats
	metrics   *collector
}

// New makes a server; it binds its port in Run. It fails on an address that cannot be bound, naming it.
func New(cfg Config, pool session.Pool, log *zap.Logger, reg prometheus.Registerer) (*Server, error) {
	s := &Server{cfg: cfg, limits: cfg.Limits.withDefaults(), log: log.With(zap.String("vip", cfg.Name)), booted: make(chan struct{}), sources: newSources()}
	if cfg.MaxConns <= 0 {
		return nil, fmt.Errorf("vip %s: no room for a single connection under the descriptor limit", cfg.Name)
	}
	sc := session.DefaultConfig()
	sc.LookupForward, sc.ForwardWrites = cfg.LookupForward, cfg.ForwardWrites
	sc.FrameBytes, sc.TagLimit, sc.Hold = s.limits.FrameBytes, s.limits.Tags, s.limits.Hold
	s.vip.Config, s.vip.Pool = sc, pool
	s.drowse = min(time.Second, s.limits.Idle/16)
	s.most.Store(int64(cfg.MaxConns))
	s.closes = make([]atomic.Uint64, len(session.Reasons())+1)
	s.loops.Store(&[]*loop{})
	var err error
	if s.probe, err = bind(cfg.Listen, cfg.SharePort); err != nil {
		return nil, fmt.Errorf("vip %s: %w", cfg.Name, err)
	}
	s.addr = s.probe.Addr().String()
	if s.writable, err = newWritable(); err != nil {
		_ = s.probe.Close()
		return nil, fmt.Errorf("vip %s: %w", cfg.Name, err)
	}
	s.metrics = newCollector(s)
	if err = reg.Register(s.metrics); err != nil {
		_ = s.probe.Close()
		s.writable.abandon()
		return nil, fmt.Errorf("vip %s: metrics: %w", cfg.Name, err)
	}
	return s, nil
}

// errStopped is what Run fails with when gnet gave up by itself: it does so on any accept error, and returns nil.
var errStopped = errors.New("the listener stopped by itself")

// Run listens and serves until Stop. Whatever else ends it is an error.
func (s *Server) Run() error {
	go s.writable.run()
	defer s.writable.close()
	opts := []gnet.Option{
		gnet.WithReusePort(true), gnet.WithReuseAddr(true), gnet.WithTicker(true), gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithTCPKeepAlive(2 * time.Minute), gnet.WithLogger(quietLogger{s.log.Sugar()}),
	}
	if s.cfg.Loops > 0 {
		opts = append(opts, gnet.WithNumEventLoop(s.cfg.Loops))
	} else {
		opts = append(opts, gnet.WithMulticore(true))
	}
	err := gnet.Run(s, "tcp://"+engineAddr(s.addr), opts...)
	_ = s.probe.Close()
	s.finishing.Wait()
	switch {
	case s.stopping.Load():
		return nil
	case err != nil:
		return fmt.Errorf("vip %s on %s: %w", s.cfg.Name, s.addr, err)
	}
	return fmt.Errorf("vip %s on %s: %w", s.cfg.Name, s.addr, errStopped)
}

// Booted is closed once the server listens.
func (s *Server) Booted() <-chan struct{} { return s.booted }

// Addr is the address that the server listens on.
func (s *Server) Addr() string { return s.addr }

// SetMaxConns changes the cap on connections: pools that grow need descriptors. Connections above a lower cap leave as
// newcomers arrive.
func (s *Server) SetMaxConns(n int) { s.most.Store(int64(n)) }

// Stop ends Run, cutting every connection that Drain has left.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Store(true)
	err := s.engine.Stop(ctx)
	s.finishers.Range(func(_, nc any) bool {
		_ = nc.(net.Conn).Close()
		return true
	})
	return err
}

// Drain resets newcomers from now on, answers what is in flight, and closes the connections that rest, spread over time.
// It returns when none is left or ctx ends.
func (s *Server) Drain(ctx context.Context) {
	s.draining.Store(true)
	window := min(5*time.Second, time.Duration(s.conns.Load())*10*time.Millisecond)
	const every = 20 * time.Millisecond
	rounds := max(1, int(window/every))
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for s.conns.Load() > 0 {
		for _, l := range *s.loops.Load() {
			n := int(s.conns.Load())/rounds + 1
			_ = l.gloop.Execute(ctx, gnet.RunnableFunc(func(context.Context) error {
				l.leave(n)
				return nil
			}))
		}
		rounds = max(1, rounds-1)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// OnBoot implements gnet.EventHandler.
func (s *Server) OnBoot(e gnet.Engine) gnet.Action {
	s.engine = e
	_ = s.probe.Close()
	close(s.booted)
	return gnet.None
}

// OnOpen admits a newcomer, at another's cost when the table is full.
func (s *Server) OnOpen(g gnet.Conn) (out []byte, action gnet.Action) {
	defer s.caught(g, &action)
	l := s.loopOf(g)
	now := snapshot.Now()
	peer := peerOf(g)
	full := false
	most := s.most.Load()
	if slack := max(2, most/32); s.conns.Add(1) > most-slack {
		// One place is enough, unless the cap has come down.
		for tries := 0; tries < 4 && s.conns.Load() > most-slack; tries++ {
			if !l.makeRoom(now) {
				s.askOthers(l)
				break
			}
		}
		full = s.conns.Load() > most
	}
	if full || s.draining.Load() {
		s.conns.Add(-1)
		reason := session.ReasonDraining
		if full {
			reason = session.ReasonFull
		}
		s.count(l, closed{at: time.Now(), peer: peer, reason: reason})
		_ = g.SetLinger(0)
		return nil, gnet.Close
	}
	c := &conn{g: g, loop: l, opened: now, peer: peer, quiet: quiet + l.nextQuiet}
	l.nextQuiet = (l.nextQuiet + 1) % quietLists
	c.sess.Init(&s.vip, forward.ClientKey(peer), c.wake)
	g.SetContext(c)
	l.ages.move(c, silent, now)
	return nil, gnet.None
}

// askOthers has the other loops make room soon: the cap has some slack to admit newcomers in the meantime.
func (s *Server) askOthers(own *loop) {
	for _, l := range *s.loops.Load() {
		if l != own {
			_ = l.gloop.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
				l.makeRoom(snapshot.Now())
				return nil
			}))
		}
	}
}

// OnTraffic implements gnet.EventHandler.
func (s *Server) OnTraffic(g gnet.Conn) (action gnet.Action) {
	c, ok := g.Context().(*conn)
	if !ok {
		return gnet.Close
	}
	return s.traffic(c)
}

func (s *Server) traffic(c *conn) (action gnet.Action) {
	defer s.caught(c.g, &action)
	return c.traffic()
}

// OnClose implements gnet.EventHandler. A client that only stopped sending still gets what it asked for.
func (s *Server) OnClose(g gnet.Conn, err error) (action gnet.Action) {
	c, ok := g.Context().(*conn)
	if !ok {
		return gnet.None
	}
	defer s.caught(g, &action)
	c.gone = true
	c.loop.ages.remove(c)
	s.writable.forget(c)
	s.buffered.Add(-int64(c.buffered))
	c.buffered = 0
	if c.end == session.ReasonNone {
		c.end = session.ReasonClient
		if s.stopping.Load() {
			c.end = session.ReasonDraining
		} else if c.owes() && c.finish() {
			return gnet.None
		}
	}
	c.sess.Close()
	s.ended(c, c.end)
	return gnet.None
}

// ended counts a connection out.
func (s *Server) ended(c *conn, reason session.Reason) {
	s.conns.Add(-1)
	s.count(c.loop, closed{
		at: time.Now(), peer: c.peer, reason: reason, requests: c.sess.Requests, age: snapshot.Now().Sub(c.opened),
	})
}

func (s *Server) count(l *loop, c closed) {
	s.closes[c.reason].Add(1)
	l.closes.add(c)
	s.sources.add(c)
}

// OnTick implements gnet.EventHandler: it has every loop look at its deadlines.
func (s *Server) OnTick() (time.Duration, gnet.Action) {
	for _, l := range *s.loops.Load() {
		if l.ticking.CompareAndSwap(false, true) {
			_ = l.gloop.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
				defer l.ticking.Store(false)
				l.tick()
				return nil
			}))
		}
	}
	return tickEvery, gnet.None
}

// caught turns a panic into the end of the one connection that met it.
func (s *Server) caught(g gnet.Conn, action *gnet.Action) {
	r := recover()
	if r == nil {
		return
	}
	s.panicked(r)
	if c, ok := g.Context().(*conn); ok {
		c.rest, c.end = answer.Rest{}, session.ReasonPanic
	}
	_ = g.SetLinger(0)
	*action = gnet.Close
}

func (s *Server) panicked(r any) {
	s.log.Error("panic while serving a connection; please report it", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
}

// loopOf returns the state of g's event loop, making it at the loop's first connection.
func (s *Server) loopOf(g gnet.Conn) *loop {
	gl := g.EventLoop()
	for _, l := range *s.loops.Load() {
		if l.gloop == gl {
			return l
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.loops.Load()
	l := newLoop(s, gl, uint64(time.Now().UnixNano())+uint64(len(old)))
	all := append(append([]*loop(nil), old...), l)
	s.loops.Store(&all)
	return l
}
