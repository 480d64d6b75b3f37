// Package session is one client connection as bytes in and bytes out: it splits frames, answers in the order of requests,
// holds back what comes after a request that waits for a broker, and names the reason when the connection must end. It
// knows no socket and no event loop: plain connections, TLS and tests drive the same code.
package session

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
	"github.com/kvip/kvip/protocol/wire"
)

// Config is what all sessions of one VIP share.
type Config struct {
	// LookupForward sends each Metadata and DescribeCluster to a broker that the policy picks.
	LookupForward bool
	// ForwardWrites lets requests that change the cluster through.
	ForwardWrites bool
	// FrameBytes bounds a request frame, its size prefix not counted; TagLimit bounds tagged fields a section.
	FrameBytes int
	TagLimit   int
	// OutBytes is how many bytes of answers are collected before the session asks for a flush.
	OutBytes int
	// Hold is how long a request waits for a first snapshot after a cold start.
	Hold time.Duration
	// ReadTimeout bounds forwarded reads, all tries together; OnceTimeout what is asked once and has no timeout of its
	// own; CreateTimeout a Metadata request that may create its topics.
	ReadTimeout, OnceTimeout, CreateTimeout time.Duration
}

// DefaultConfig returns the defaults of decisions.md and reliability.md.
func DefaultConfig() Config {
	return Config{
		FrameBytes: 2 << 20, TagLimit: 16, OutBytes: 256 << 10,
		Hold: 3 * time.Second, ReadTimeout: time.Second, OnceTimeout: time.Second, CreateTimeout: 2 * time.Second,
	}
}

// VIP is what the sessions of one VIP have in common.
type VIP struct {
	Config
	Pool Pool
	// answered says that answers were there once: from then on, their absence means that the last ones are too old.
	answered atomic.Bool
}

// Step is what a session wants of whoever drives it.
type Step uint8

const (
	// NeedInput: every whole frame is served; more bytes are needed.
	NeedInput Step = iota
	// NeedFlush: enough is collected; write it out and call Serve again.
	NeedFlush
	// Waiting: a request is with a broker; call Serve again after the wake.
	Waiting
	// Held: there is nothing to answer with yet; call Serve again soon.
	Held
	// End: write out what is collected, then close for the returned reason.
	End
)

// Session is one client connection. Its methods belong to one goroutine at a time; only the wake may be called by others.
type Session struct {
	vip    *VIP
	wake   func()
	client uint64
	broker string // that this connection's forwards stick to

	forwarded *forwarded
	heldSince snapshot.Time
	// need is how many bytes the frame at the head of the input takes, 0 when not known.
	need int
	// Requests counts whole requests; Looked says that a Metadata answer was given, so that the client can do without
	// this connection.
	Requests uint64
	Looked   bool
}

// forwarded is the request in flight.
type forwarded struct {
	header wire.Header
	since  snapshot.Time
	spread bool // the policy picked: the connection does not stick to that broker
	cancel context.CancelFunc
	result atomic.Pointer[forward.Result]
}

// Init makes s ready for a new connection. client is the peer's forward.ClientKey, by which policies pick; wake is
// called from another goroutine when Serve has to be called again.
func (s *Session) Init(vip *VIP, client uint64, wake func()) {
	*s = Session{vip: vip, client: client, wake: wake}
}

// Need returns how many bytes of input the frame at its head takes, or 0 when it is not known yet: with fewer there is
// nothing for Serve to do.
func (s *Session) Need() int { return s.need }

// Busy says that a request waits for its answer.
func (s *Session) Busy() bool { return s.forwarded != nil || s.heldSince != 0 }

// Close gives up what is in flight.
func (s *Session) Close() {
	if s.forwarded != nil {
		s.forwarded.cancel()
	}
}

// Serve takes whole frames from the front of in, answers into out, and returns how many bytes it took and what it wants
// next. Nothing of in is kept.
func (s *Session) Serve(in []byte, out *answer.Out, tally *Tally, now snapshot.Time) (taken int, step Step, reason Reason) {
	if s.forwarded != nil {
		if step, reason = s.finish(out, tally, now); step != NeedInput {
			return 0, step, reason
		}
	}
	for {
		if out.Len() >= s.vip.OutBytes {
			return taken, NeedFlush, ReasonNone
		}
		s.need = 0
		rest := in[taken:]
		if len(rest) < wire.SizeBytes {
			return taken, NeedInput, ReasonNone
		}
		n, fault := wire.FrameSize(rest, s.vip.FrameBytes)
		if fault != wire.OK {
			return taken, End, faultReason(fault)
		}
		if s.need = n; len(rest) < n {
			return taken, NeedInput, ReasonNone
		}
		step, reason = s.serve(rest[:n], out, tally, now)
		if step == Held {
			return taken, step, reason
		}
		taken += n
		s.Requests++
		s.need = 0
		if step != NeedInput {
			return taken, step, reason
		}
	}
}

// serve deals with one whole frame.
func (s *Session) serve(frame []byte, out *answer.Out, tally *Tally, now snapshot.Time) (Step, Reason) {
	q := &tally.request
	*q = answer.Request{TagLimit: s.vip.TagLimit, Client: s.client}
	var fault wire.Fault
	if q.Header, q.Body, fault = wire.ParseHeader(frame, s.vip.TagLimit); fault != wire.OK {
		return End, faultReason(fault)
	}
	set := s.vip.Pool.Answers(now)
	if set == nil {
		return s.hold(now)
	}
	s.heldSince = 0
	if !s.vip.answered.Load() {
		s.vip.answered.Store(true)
	}
	if fault = set.Check(q.Key, q.Version); fault != wire.OK {
		return End, faultReason(fault)
	}
	if !answer.Local(q.Key) {
		return s.route(frame, q, out, tally, now)
	}
	if s.vip.LookupForward && q.Key != wire.KeyApiVersions {
		return s.lookup(frame, q, now)
	}
	verdict, fault := set.Answer(out, q)
	switch verdict {
	case answer.Answered:
		tally.local(q.Key, q.Version)
		s.Looked = s.Looked || q.Key != wire.KeyApiVersions
		return NeedInput, ReasonNone
	case answer.Forward:
		return s.lookup(frame, q, now)
	case answer.Later:
		s.heldSince = now
		return Held, ReasonNone
	}
	return End, faultReason(fault)
}

// hold lets a request wait for the first snapshot of a cold start; once there was one, its absence means that it has
// become too old, and the client is better served by its next address.
func (s *Session) hold(now snapshot.Time) (Step, Reason) {
	if s.heldSince == 0 {
		s.heldSince = now
	}
	if s.vip.answered.Load() || now.Sub(s.heldSince) >= s.vip.Hold {
		return End, ReasonNoSnapshot
	}
	return Held, ReasonNone
}

// lookup forwards a request of a key that is usually answered here.
func (s *Session) lookup(frame []byte, q *answer.Request, now snapshot.Time) (Step, Reason) {
	// Sharing is right even where the answer depends on who asks: here, nobody is anybody.
	r := &forward.Request{Timeout: s.vip.ReadTimeout, Retry: true, Shared: true, Broker: s.broker, Spread: s.vip.LookupForward}
	if q.Key == wire.KeyMetadata {
		var req wire.MetadataRequest
		if fault := req.Parse(q.Body, q.Version, q.TagLimit); fault != wire.OK {
			return End, faultReason(fault)
		}
		if req.AutoCreate && req.Count > 0 {
			// It may create topics: a write, which is never sent twice.
			r.Retry, r.Timeout = false, s.vip.CreateTimeout
		}
	}
	return s.forward(frame, q, r, now)
}

// route forwards or refuses a request of a key that is never answered here.
func (s *Session) route(frame []byte, q *answer.Request, out *answer.Out, tally *Tally, now snapshot.Time) (Step, Reason) {
	r := &forward.Request{Timeout: s.vip.OnceTimeout, Broker: s.broker}
	class := forward.Rules[q.Key]
	switch class {
	case forward.Read:
		r.Retry, r.Shared, r.Timeout = true, true, s.vip.ReadTimeout
	case forward.Once:
		if q.Key == wire.KeyInitProducerID && !wire.HasTransactionalID(q.Body, q.Version) {
			r.Retry, r.Timeout = true, s.vip.ReadTimeout
		}
	case forward.Write:
		if !s.vip.ForwardWrites {
			return s.refuse(class, q, out, tally, ReasonWrite)
		}
		r.Timeout = forward.OwnTimeout(q.Key, q.Version, q.Body, s.vip.OnceTimeout) + time.Second
	case forward.Leader, forward.Coordinator:
		return s.refuse(class, q, out, tally, ReasonRefused)
	case forward.Internal:
		return End, ReasonKey
	}
	return s.forward(frame, q, r, now)
}

func (s *Session) refuse(class forward.Class, q *answer.Request, out *answer.Out, tally *Tally, reason Reason) (Step, Reason) {
	tally.count(q.Key, q.Version, Refused)
	frame := forward.Refuse(class, q.Key, q.Version, q.CorrelationID, q.Body)
	if frame == nil {
		if q.Key == 0 && reason == ReasonRefused {
			reason = ReasonAcksZero
		}
		return End, reason
	}
	out.Refer(frame)
	return NeedInput, ReasonNone
}

func (s *Session) forward(frame []byte, q *answer.Request, r *forward.Request, now snapshot.Time) (Step, Reason) {
	f := &forwarded{header: q.Header, since: now, spread: r.Spread}
	f.header.ClientID = nil // it aliases the input
	r.Key, r.Version, r.Client = q.Key, q.Version, s.client
	r.Frame = append([]byte(nil), frame...)
	r.Ctx, f.cancel = context.WithCancel(context.Background())
	wake := s.wake
	r.Done = func(res forward.Result) {
		f.result.Store(&res)
		wake()
	}
	s.forwarded = f
	s.vip.Pool.Forward(r)
	return Waiting, ReasonNone
}

// finish delivers the answer of the request in flight, if it is there.
func (s *Session) finish(out *answer.Out, tally *Tally, now snapshot.Time) (Step, Reason) {
	f := s.forwarded
	res := f.result.Load()
	if res == nil {
		return Waiting, ReasonNone
	}
	s.forwarded = nil
	f.cancel()
	took := now.Sub(f.since)
	if res.Err != nil {
		tally.count(f.header.Key, f.header.Version, Failed)
		tally.observe(f.header.Key, Failed, took)
		return End, forwardReason(res.Err)
	}
	tally.count(f.header.Key, f.header.Version, Forwarded)
	tally.observe(f.header.Key, Forwarded, took)
	if !f.spread {
		s.broker = res.Broker
	}
	s.Looked = s.Looked || f.header.Key == wire.KeyMetadata
	out.Refer(res.Frame)
	return NeedInput, ReasonNone
}

func forwardReason(err error) Reason {
	switch {
	case errors.Is(err, forward.ErrNoBroker):
		return ReasonNoBroker
	case errors.Is(err, forward.ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		return ReasonForwardTimeout
	case errors.Is(err, forward.ErrBusy):
		return ReasonForwardBusy
	}
	return ReasonForwardFailed
}
