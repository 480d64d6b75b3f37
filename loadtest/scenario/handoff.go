package scenario

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

var errNotLoopback = errors.New("it is not on this machine's loopback; --yes-really dials it all the same")

// handoff connects to every broker that a client was told of, one after the other: an address that nobody answers at is
// what a client would hang on next.
type handoff struct {
	owner   *bootstrap
	conn    *engine.Conn
	brokers []string // those not reached yet; the first is being dialled
	began   engine.Time
}

func newHandoff(s *shard, owner *bootstrap) *handoff {
	h := &handoff{owner: owner}
	h.conn = s.loop.NewConn(h)
	return h
}

func (h *handoff) begin(brokers []string) {
	h.brokers, h.began = brokers, engine.Now()
	h.dial()
}

func (h *handoff) dial() {
	if len(h.brokers) == 0 {
		h.owner.took(record.Handoff, engine.Now(), h.began)
		h.owner.end(failure.None, "")
		return
	}
	h.owner.shard.locate(h.brokers[0], func(to *engine.Target, err error) {
		s := h.owner.shard
		switch {
		case errors.Is(err, errNotLoopback):
			h.end(failure.LocalOther, err.Error())
			return
		case err != nil:
			h.end(failure.StaleAddress, err.Error())
			return
		}
		from := s.sources.Next()
		if !to.Addr.Addr().IsLoopback() {
			from = nil
		}
		if why := h.conn.Dial(from, to); why != failure.None {
			h.Failed(h.conn, why)
			return
		}
		h.conn.Deadline(h.owner.op.due)
	})
}

// Connected implements engine.Handler.
func (h *handoff) Connected(*engine.Conn) {
	h.conn.Close()
	h.brokers = h.brokers[1:]
	h.dial()
}

// Frame implements engine.Handler: a broker has nothing to say before it is asked.
func (h *handoff) Frame(_ *engine.Conn, frame []byte) {
	h.conn.Close()
	h.end(failure.Unasked, fmt.Sprintf("%d bytes from broker %s", len(frame), h.brokers[0]))
}

// Failed implements engine.Handler.
func (h *handoff) Failed(_ *engine.Conn, why failure.Class) {
	if why.Local() {
		h.end(why, "")
		return
	}
	h.end(failure.StaleAddress, why.String())
}

func (h *handoff) end(why failure.Class, detail string) {
	h.owner.end(why, fmt.Sprintf("advertised broker %s: %s", h.brokers[0], detail))
}

// address is where a broker that clients were told of is: looked up once per run.
type address struct {
	target  *engine.Target
	err     error
	waiting []func(*engine.Target, error)
}

// locate calls found with the address of a broker: at once when it is known.
func (s *shard) locate(hostport string, found func(*engine.Target, error)) {
	a := s.addresses[hostport]
	if a != nil && a.waiting == nil {
		found(a.target, a.err)
		return
	}
	if a != nil {
		a.waiting = append(a.waiting, found)
		return
	}
	a = &address{waiting: []func(*engine.Target, error){found}}
	s.addresses[hostport] = a
	s.resolve(func() {
		ctx, cancel := context.WithTimeout(s.background, s.cfg.Timeout)
		defer cancel()
		target, err := engine.Resolve(ctx, hostport)
		if err == nil && !target.Addr.Addr().IsLoopback() && !s.cfg.Remote {
			target, err = nil, errNotLoopback
		}
		s.loop.Do(func() {
			a.target, a.err = target, err
			waiting := a.waiting
			a.waiting = nil
			for _, f := range waiting {
				f(target, err)
			}
		})
	})
}
