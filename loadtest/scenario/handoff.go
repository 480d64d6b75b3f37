package scenario

import (
	"fmt"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

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
		case err == errNotLoopback:
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
