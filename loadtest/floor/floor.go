// Package floor is the least that a gnet server can do to answer Kafka lookups: it reads a whole frame, copies the
// correlation id and writes ready bytes. What kvip costs beyond it is kvip's own work; a load generator is calibrated
// against it. It sets the socket options that kvip's front sets.
package floor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/panjf2000/gnet/v2"
	"go.uber.org/zap"
)

// DefaultMaxFrame is the longest request accepted when Config.MaxFrame is 0, in bytes.
const DefaultMaxFrame = 2 << 20

// Config of a floor.
type Config struct {
	Listen    string        // host:port
	Loops     int           // event loops, at least 1
	KeepAlive time.Duration // TCP keep-alive idle time; 0: off
	MaxFrame  int           // longest request frame in bytes; 0: DefaultMaxFrame
	Answers   []Answer      // served first match; a request that none matches closes its connection
}

// Server answers on one address until it is stopped.
type Server struct {
	gnet.BuiltinEventEngine
	cfg    Config
	master []ready

	mu    sync.Mutex
	loops map[gnet.EventLoop]*loop

	engine gnet.Engine
	booted chan struct{}
	done   chan struct{}
}

// loop is what one event loop owns. Each connection keeps a pointer to its loop's.
type loop struct{ answers []ready }

// New checks the configuration; Run serves it.
func New(cfg Config) (*Server, error) {
	if cfg.Loops < 1 {
		return nil, fmt.Errorf("floor: %d event loops, needs at least 1", cfg.Loops)
	}
	if cfg.MaxFrame == 0 {
		cfg.MaxFrame = DefaultMaxFrame
	}
	master, err := prepare(cfg.Answers)
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg: cfg, master: master, loops: map[gnet.EventLoop]*loop{},
		booted: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// Booted is closed once the floor listens.
func (s *Server) Booted() <-chan struct{} { return s.booted }

// Run serves until ctx ends. gnet returns nil when it dies of an accept error, so any return that ctx did not ask for is
// an error here.
func (s *Server) Run(ctx context.Context) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
		case <-s.done:
			return
		}
		select {
		case <-s.booted:
			stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_ = s.engine.Stop(stopCtx) // Run reports how the engine ended
		case <-s.done:
		}
	}()
	err := gnet.Run(s, "tcp://"+s.cfg.Listen,
		gnet.WithNumEventLoop(s.cfg.Loops),
		gnet.WithReusePort(true),
		gnet.WithReuseAddr(true),
		gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithTCPKeepAlive(s.cfg.KeepAlive),
		gnet.WithLogger(zap.NewNop().Sugar()),
	)
	close(s.done)
	<-stopped
	if err != nil {
		return fmt.Errorf("floor on %s: %w", s.cfg.Listen, err)
	}
	if ctx.Err() == nil {
		return errors.New("floor on " + s.cfg.Listen + ": the engine stopped by itself (out of descriptors?)")
	}
	return nil
}

// OnBoot implements gnet.EventHandler.
func (s *Server) OnBoot(e gnet.Engine) gnet.Action {
	s.engine = e
	close(s.booted)
	return gnet.None
}

// OnOpen gives the connection its loop's copy of the answers.
func (s *Server) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.loops[c.EventLoop()]
	if l == nil {
		l = &loop{answers: make([]ready, len(s.master))}
		for i, a := range s.master {
			a.frame = append([]byte(nil), a.frame...)
			l.answers[i] = a
		}
		s.loops[c.EventLoop()] = l
	}
	c.SetContext(l)
	return nil, gnet.None
}

// OnTraffic answers every whole request that has arrived.
func (s *Server) OnTraffic(c gnet.Conn) gnet.Action {
	l := c.Context().(*loop)
	for {
		head, err := c.Peek(frameHead)
		if err != nil {
			if errors.Is(err, io.ErrShortBuffer) {
				return gnet.None
			}
			return gnet.Close
		}
		size := int(int32(binary.BigEndian.Uint32(head)))
		if size < frameHead-4 || size > s.cfg.MaxFrame {
			return gnet.Close
		}
		if c.InboundBuffered() < 4+size {
			return gnet.None
		}
		frame := find(l.answers, int16(binary.BigEndian.Uint16(head[4:])), int16(binary.BigEndian.Uint16(head[6:])), size)
		if frame == nil {
			return gnet.Close
		}
		copy(frame[4:8], head[8:12])
		if _, err := c.Discard(4 + size); err != nil {
			return gnet.Close
		}
		if _, err := c.Write(frame); err != nil {
			return gnet.None // gnet has closed the connection already
		}
	}
}
