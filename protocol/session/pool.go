package session

import (
	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
)

// Pool is what a session needs of the brokers behind its VIP.
type Pool interface {
	// Answers returns the answers that may be given at now, or nil when nothing may be said: no snapshot yet, or the
	// last one is older than max_stale.
	Answers(now snapshot.Time) *answer.Set
	// Forward sends r to a broker and calls r.Done once, from any goroutine. It never blocks.
	Forward(r *forward.Request)
}
