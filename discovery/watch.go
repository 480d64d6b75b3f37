package discovery

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// DefaultDebounce is how long a Watcher gathers updates before it decides.
const DefaultDebounce = 100 * time.Millisecond

// WatchConfig is what a Watcher needs to know; the zero value of each field but Log is its default.
type WatchConfig struct {
	// ShrinkHold is how long an unexplained removal is held back; 0 is DefaultShrinkHold.
	ShrinkHold time.Duration
	// Debounce is how long updates are gathered before they are decided together, the latest of each provider winning;
	// 0 is DefaultDebounce. The first answer of a pool without members is not delayed.
	Debounce time.Duration
	// Probe says what the pool's own probe thinks of a member; it is called from Run's goroutine. nil: Unprobed.
	Probe func(addr string) ProbeState
	// Restore are the members that the last run left on disk.
	Restore []Instance
	Log     *zap.Logger
}

// Watcher runs a pool's providers, merges what they say, and gives out whole, changed, non-empty views.
type Watcher struct {
	cfg WatchConfig
}

// NewWatcher refuses an empty list of providers and two of one name.
func NewWatcher(cfg WatchConfig, providers []Provider) (*Watcher, error) { return &Watcher{cfg: cfg}, nil }

// Run watches until ctx ends and returns ctx's error. publish is called from one goroutine, must not block for long, and
// gets the restored members as the first view when there are any.
func (w *Watcher) Run(ctx context.Context, publish func(View)) error { return nil }

// Recheck asks for a decision now, because a member's probe has changed its mind. It never blocks.
func (w *Watcher) Recheck() {}

// SetTombstones replaces the addresses that an operator has removed. It never blocks.
func (w *Watcher) SetTombstones(addrs []string) {}

// Status says how the providers are doing; for any goroutine.
func (w *Watcher) Status() WatchStatus { return WatchStatus{} }

// WatchStatus is what status pages and metrics need of a Watcher.
type WatchStatus struct {
	Generation uint64           `json:"generation"`
	Members    int              `json:"members"`
	Held       []Held           `json:"held"`
	Providers  []ProviderStatus `json:"providers"`
}

// ProviderStatus is the state of one provider.
type ProviderStatus struct {
	Name string `json:"name"`
	// LastSuccess is when it last answered, zero when it never has.
	LastSuccess time.Time `json:"last_success"`
	// Error is why its last read failed, "" when it did not.
	Error string `json:"error"`
	// ErrorSince is when it began to fail.
	ErrorSince time.Time `json:"error_since"`
	Stale      bool      `json:"stale"`
	Instances  int       `json:"instances"`
	// Skipped counts the entries of its last answer that it did not take, by reason.
	Skipped map[string]int `json:"skipped"`
}
