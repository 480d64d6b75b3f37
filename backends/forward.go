package backends

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvip/kvip/backends/upstream"
	"github.com/kvip/kvip/protocol/forward"
	"github.com/kvip/kvip/protocol/wire"
)

const (
	// tryTime is how long one broker has to answer a read, readTime all of them together.
	tryTime, readTime = 400 * time.Millisecond, time.Second
	// maxWaiting bounds the requests of a pool that wait for a connection.
	maxWaiting = 1024
)

// forwarder carries clients' requests to brokers: a flight is one request on its way, with all the clients that wait for
// its answer.
type forwarder struct {
	up    *upstream.Pool
	view  func() *view
	nudge func(addr string)

	active atomic.Int64
	shared atomic.Uint64
	// needed counts the requests that went to a broker whose probe fails.
	needed atomic.Uint64
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	flights map[string]*flight
}

type flight struct {
	f       *forwarder
	req     *forward.Request
	started time.Time
	ctx     context.Context
	cancel  context.CancelFunc
	// Below belongs to forwarder.mu.
	key     string
	waiting int
	waiters []*waiter
}

// waiter is one client's request; its Done is called by whoever is first, the answer or the client's going.
type waiter struct {
	req  *forward.Request
	done atomic.Bool
	stop func() bool
}

func (w *waiter) finish(r forward.Result) bool {
	if w.done.Swap(true) {
		return false
	}
	w.req.Done(r)
	return true
}

func newForwarder(up *upstream.Pool, view func() *view, nudge func(string)) *forwarder {
	f := &forwarder{up: up, view: view, nudge: nudge, flights: map[string]*flight{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// close ends what is under way and waits for it.
func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	f.wg.Wait()
}

// forward sends r to a broker, or joins an identical request in flight.
func (f *forwarder) forward(r *forward.Request) {
	if err := f.start(r); err != nil {
		r.Done(forward.Result{Err: err})
	}
}

func (f *forwarder) start(r *forward.Request) error {
	if err := r.Ctx.Err(); err != nil {
		return err
	}
	if len(f.view().targets) == 0 {
		return forward.ErrNoBroker
	}
	key := ""
	if r.Shared && r.Retry {
		key = shareKey(r.Frame)
	}
	w := &waiter{req: r}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return forward.ErrNoBroker
	}
	// A late comer would not get the time that it is due from a flight that has been on its way for long.
	if fl := f.flights[key]; key != "" && fl != nil && time.Since(fl.started) < tryTime {
		f.shared.Add(1)
		fl.join(w)
		return nil
	}
	if f.active.Add(1) > maxWaiting+maxUpstreamTotal {
		f.active.Add(-1)
		return forward.ErrBusy
	}
	fl := &flight{f: f, req: r, started: time.Now(), key: key}
	fl.ctx, fl.cancel = context.WithCancel(f.ctx)
	if key != "" {
		f.flights[key] = fl
	}
	fl.join(w)
	f.wg.Go(fl.run)
	return nil
}

// join adds a client to a flight, under mu. When the last one has gone nothing new is tried for it.
func (fl *flight) join(w *waiter) {
	fl.waiters = append(fl.waiters, w)
	fl.waiting++
	w.stop = context.AfterFunc(w.req.Ctx, func() {
		if !w.finish(forward.Result{Err: context.Cause(w.req.Ctx)}) {
			return
		}
		fl.f.mu.Lock()
		defer fl.f.mu.Unlock()
		if fl.waiting--; fl.waiting == 0 {
			fl.land()
		}
	})
}

// land makes a flight one that nobody can join any more, under mu.
func (fl *flight) land() {
	fl.cancel()
	if fl.key != "" && fl.f.flights[fl.key] == fl {
		delete(fl.f.flights, fl.key)
	}
}

func (fl *flight) run() {
	defer fl.f.active.Add(-1)
	res := fl.carry()
	fl.f.mu.Lock()
	fl.land()
	waiters := fl.waiters
	fl.f.mu.Unlock()
	for _, w := range waiters {
		w.stop()
		w.finish(fl.resultFor(w.req, res))
	}
}

// resultFor gives a client that shares an answer its own correlation id.
func (fl *flight) resultFor(r *forward.Request, res forward.Result) forward.Result {
	if r == fl.req || res.Err != nil {
		return res
	}
	own := r.Frame[wire.CorrelationOffset:][:4]
	if !slices.Equal(own, res.Frame[wire.ResponseCorrelationOffset:][:4]) {
		res.Frame = slices.Clone(res.Frame)
		copy(res.Frame[wire.ResponseCorrelationOffset:], own)
	}
	if r.Broker != "" && !r.Spread {
		res.Broker = r.Broker // it did not ask this broker, so it does not stick to it
	}
	return res
}

// maxCloses is how many brokers may close on a request before it is taken for one that brokers close on: a client's
// malformed bytes cost each that gets them an exception.
const maxCloses = 2

// carry asks brokers in turn until one answers. A request that changes something goes to a second one only if not a byte
// of it was sent to the first.
func (fl *flight) carry() forward.Result {
	r := fl.req
	ctx, cancel := context.WithTimeout(fl.ctx, fl.timeout())
	defer cancel()
	var tried []target
	closes := 0
	for {
		v := fl.f.view()
		t, ok := v.choose(r, tried)
		if !ok {
			return forward.Result{Err: forward.ErrNoBroker}
		}
		if t.failing {
			fl.f.needed.Add(1)
		}
		frame, err := fl.try(ctx, t.addr)
		if err == nil {
			return forward.Result{Frame: frame, Broker: t.addr}
		}
		tried = append(tried, t)
		var notSent *upstream.NotSentError
		switch {
		case errors.Is(err, upstream.ErrFull):
			return forward.Result{Err: forward.ErrBusy}
		case fl.ctx.Err() != nil:
			return forward.Result{Err: fl.ctx.Err()}
		case ctx.Err() != nil:
			return forward.Result{Err: forward.ErrDeadline}
		}
		fl.f.nudge(t.addr)
		sent := !errors.As(err, &notSent)
		if sent && !errors.Is(err, upstream.ErrLate) {
			closes++
		}
		if sent && !r.Retry || closes == maxCloses || !v.more(tried) {
			if errors.Is(err, upstream.ErrLate) {
				err = forward.ErrDeadline
			}
			return forward.Result{Err: err}
		}
	}
}

// timeout bounds all tries together.
func (fl *flight) timeout() time.Duration {
	switch t := fl.req.Timeout; {
	case t > 0 && fl.req.Retry:
		return min(t, readTime)
	case t > 0:
		return t
	}
	return readTime
}

func (fl *flight) try(ctx context.Context, addr string) ([]byte, error) {
	if fl.req.Retry {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tryTime)
		defer cancel()
	}
	return fl.f.up.Do(ctx, addr, fl.req.Frame, fl.req.Retry)
}

// choose picks whom to ask: first the broker that the connection sticks to, if it may still be used, else the policy's
// pick; after a failure one of another rack, else any that was not tried; in need, those whose probes fail come last.
func (v *view) choose(r *forward.Request, tried []target) (target, bool) {
	if len(v.targets) == 0 {
		return target{}, false
	}
	if len(tried) == 0 && r.Broker != "" && !r.Spread {
		if t, ok := v.sticky[r.Broker]; ok {
			return t, true
		}
	}
	first := max(0, v.picker.Pick(r.Client))
	if len(tried) == 0 {
		return v.targets[first], true
	}
	// The policy, asked for other clients, spreads what a broker leaves behind over the others.
	const picks, another = 8, 0x9e3779b97f4a7c15
	for _, sameRack := range []bool{false, true} {
		for n := range uint64(picks) {
			if i := v.picker.Pick(r.Client + (n+1)*another); i >= 0 && v.targets[i].mayFollow(tried, sameRack) {
				return v.targets[i], true
			}
		}
		if t, ok := following(v.targets, first, tried, sameRack); ok {
			return t, true
		}
	}
	for _, sameRack := range []bool{false, true} {
		if t, ok := following(v.reserve, first, tried, sameRack); ok {
			return t, true
		}
	}
	return target{}, false
}

// following is the first that may follow, from one place on.
func following(from []target, first int, tried []target, sameRack bool) (target, bool) {
	for i := range from {
		if t := from[(first+i)%len(from)]; t.mayFollow(tried, sameRack) {
			return t, true
		}
	}
	return target{}, false
}

// mayFollow says that a target was not tried, nor, unless sameRack, one of its rack.
func (t target) mayFollow(tried []target, sameRack bool) bool {
	return !slices.ContainsFunc(tried, func(u target) bool {
		return u.addr == t.addr || !sameRack && u.rack == t.rack
	})
}

// more says whether a broker is left to be tried.
func (v *view) more(tried []target) bool {
	for _, from := range [][]target{v.targets, v.reserve} {
		if slices.ContainsFunc(from, func(t target) bool { return t.mayFollow(tried, true) }) {
			return true
		}
	}
	return false
}

// shareKey is what two requests have to have in common to share an answer: all bytes but the correlation id and the
// client id, which is an int16 length and as many bytes in either header version (protocol rule 1 of clients.md).
func shareKey(frame []byte) string {
	const clientID = wire.CorrelationOffset + 4
	if len(frame) < clientID+2 {
		return ""
	}
	end := clientID + 2 + max(0, int(int16(binary.BigEndian.Uint16(frame[clientID:]))))
	if end > len(frame) {
		return ""
	}
	var key strings.Builder
	key.Grow(4 + len(frame) - end)
	key.Write(frame[wire.SizeBytes:wire.CorrelationOffset])
	key.Write(frame[end:])
	return key.String()
}
