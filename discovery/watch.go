package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// DefaultDebounce is how long a Watcher gathers updates before it decides.
const DefaultDebounce = 100 * time.Millisecond

// askAgain is how long a Watcher waits for a Refresh to be answered before it asks again; restart is how long a provider
// stays down that returned from Run uncalled for.
const (
	askAgain = 10 * time.Second
	restart  = 2 * time.Second
	// patience is how long the first decision waits for orders.
	patience = 2 * time.Second
)

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
	// Log gets every change of the membership and of a provider's health, and nothing else.
	Log *zap.Logger
}

// Watcher runs a pool's providers, merges what they say, and gives out whole, changed, non-empty views.
type Watcher struct {
	cfg       WatchConfig
	providers []Provider
	wake      chan struct{} // capacity 1: something waits in inbox
	recheck   chan struct{} // capacity 1

	lists  []string        // the names of the providers that list members, in their order
	orders map[string]bool // the names of the Overseers

	mu     sync.Mutex
	inbox  map[string]Update // the latest answer of each provider
	status WatchStatus
	health map[string]*ProviderStatus
}

// NewWatcher refuses an empty list of providers and two of one name.
func NewWatcher(cfg WatchConfig, providers []Provider) (*Watcher, error) {
	if len(providers) == 0 {
		return nil, errors.New("discovery: a pool needs at least one provider")
	}
	if cfg.Debounce <= 0 {
		cfg.Debounce = DefaultDebounce
	}
	w := &Watcher{
		cfg: cfg, providers: providers,
		wake: make(chan struct{}, 1), recheck: make(chan struct{}, 1),
		inbox: map[string]Update{}, health: map[string]*ProviderStatus{},
	}
	for _, p := range providers {
		if w.health[p.Name()] != nil {
			return nil, fmt.Errorf("discovery: two providers are named %q; give each its own name", p.Name())
		}
		w.health[p.Name()] = &ProviderStatus{Name: p.Name()}
	}
	if w.lists, w.orders = overseers(providers); len(w.lists) == 0 {
		return nil, errors.New("discovery: a pool needs at least one provider")
	}
	return w, nil
}

// Run watches until ctx ends and returns ctx's error. publish is called from one goroutine, must not block for long, and
// gets the restored members as the first view when there are any. Run is called once.
func (w *Watcher) Run(ctx context.Context, publish func(View)) error {
	m := NewMembership(Rules{Providers: w.lists, ShrinkHold: w.cfg.ShrinkHold, Probe: w.cfg.Probe})
	emit := func(v View, ok bool) {
		if ok {
			w.logView(v)
			publish(v)
		}
		w.note(m)
	}
	emit(m.Restore(w.cfg.Restore, time.Now()))

	var wg sync.WaitGroup
	defer wg.Wait()
	for _, p := range w.providers {
		wg.Go(func() { w.watch(ctx, p) })
	}
	var debounce, ask, first <-chan time.Time
	if len(w.orders) > 0 {
		first = time.After(patience)
	}
	var asked time.Time
	for {
		decide := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
			if debounce == nil {
				debounce = time.After(w.cfg.Debounce)
			}
			decide = len(m.Members()) == 0
		case <-debounce:
			debounce, decide = nil, true
		case <-w.recheck:
			emit(m.Tick(time.Now()))
		case <-ask:
			w.ask(m)
			asked = time.Now()
		case <-first:
			first, decide = nil, true
		}
		if first != nil && w.heard() {
			first = nil
		}
		if decide && first == nil {
			w.drain(m, emit)
		}
		ask = nil
		if at, _, waiting := m.Next(); waiting {
			ask = time.After(max(time.Until(at), time.Until(asked.Add(askAgain)), time.Millisecond))
		}
	}
}

// watch runs one provider for good. A provider returns only when ctx ends; one that returns earlier is at fault, is said
// to have failed, and is started again.
func (w *Watcher) watch(ctx context.Context, p Provider) {
	for {
		err := p.Run(ctx, func(u Update) { w.take(p, u) })
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it gave no reason")
		}
		w.take(p, Update{Err: fmt.Errorf("the provider stopped by itself: %w", err)})
		select {
		case <-ctx.Done():
			return
		case <-time.After(restart):
		}
	}
}

// heard says whether every Overseer has answered, be it that it cannot.
func (w *Watcher) heard() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.orders {
		if h := w.health[name]; h.LastSuccess.IsZero() && h.Error == "" {
			return false
		}
	}
	return true
}

// take files one update: the latest answer of a provider wins, and a failure replaces none.
func (w *Watcher) take(p Provider, u Update) {
	u.Provider = p.Name()
	if u.At.IsZero() {
		u.At = time.Now()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health[u.Provider]
	failed := h.Error
	if u.Err != nil {
		h.Error = u.Err.Error()
		if failed == "" {
			h.ErrorSince = u.At
			w.cfg.Log.Warn("discovery: a read failed; the members stay as they are", zap.String("provider", u.Provider), zap.Error(u.Err))
			poke(w.wake)
		}
		return
	}
	if failed != "" {
		w.cfg.Log.Info("discovery: reads succeed again", zap.String("provider", u.Provider), zap.Duration("after", u.At.Sub(h.ErrorSince)))
	}
	skipped := map[string]int{}
	for _, s := range u.Skipped {
		skipped[s.Reason]++
	}
	switch {
	case maps.Equal(skipped, h.Skipped):
	case len(skipped) > 0:
		w.cfg.Log.Info("discovery: entries are not taken", zap.String("provider", u.Provider), zap.Any("skipped", skipped))
	default:
		w.cfg.Log.Info("discovery: all entries are taken again", zap.String("provider", u.Provider))
	}
	*h = ProviderStatus{
		Name: u.Provider, LastSuccess: u.At, Stale: u.Stale, Instances: len(u.Instances), Skipped: skipped,
	}
	w.inbox[u.Provider] = u
	poke(w.wake)
}

// drain applies what has been filed.
func (w *Watcher) drain(m *Membership, emit func(View, bool)) {
	w.mu.Lock()
	inbox := w.inbox
	w.inbox = map[string]Update{}
	w.mu.Unlock()
	now := time.Now()
	for _, u := range inbox {
		if w.orders[u.Provider] && u.Orders != nil {
			m.order(*u.Orders)
		}
		m.file(u, now) // which is for those that list members
	}
	emit(m.decide(now))
}

// ask has the providers read again that held members wait for.
func (w *Watcher) ask(m *Membership) {
	_, names, _ := m.Next()
	for _, p := range w.providers {
		if r, ok := p.(Refresher); ok && slices.Contains(names, p.Name()) {
			r.Refresh()
		}
	}
}

// note keeps what Status tells of m, which only Run's goroutine may touch.
func (w *Watcher) note(m *Membership) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := m.Held()
	w.logHeld(w.status.Held, held, m)
	w.status = WatchStatus{Generation: m.generation, Members: len(m.members), Held: held}
}

// logHeld says whom no registry lists any more and who is listed again: as long as they stay nothing else tells of it.
func (w *Watcher) logHeld(was, held []Held, m *Membership) {
	find := func(list []Held, addr string) (why string, found bool) {
		i, found := slices.BinarySearchFunc(list, addr, func(h Held, addr string) int { return strings.Compare(h.Addr, addr) })
		if found {
			why = list[i].Why
		}
		return why, found
	}
	lines := 0
	for _, h := range held {
		if why, _ := find(was, h.Addr); why == h.Why || len(m.skipped) == 0 { // no registry has been read yet
			continue
		}
		if lines++; lines <= maxLines {
			w.cfg.Log.Warn(fmt.Sprintf("discovery: no registry lists %s, it stays for now: %s", h.Addr, h.Why))
		}
	}
	if lines > maxLines {
		w.cfg.Log.Warn("discovery: no registry lists more members, which stay for now", zap.Int("count", lines-maxLines))
	}
	lines = 0
	for _, h := range was {
		_, member := m.members[h.Addr]
		if _, still := find(held, h.Addr); still || !member {
			continue
		}
		if lines++; lines <= maxLines {
			w.cfg.Log.Info(fmt.Sprintf("discovery: %s is listed", h.Addr))
		}
	}
}

// maxLines bounds the log lines of one view: a pool of thousands that comes at once is one fact.
const maxLines = 20

func (w *Watcher) logView(v View) {
	for i, c := range v.Changes {
		if i == maxLines {
			w.cfg.Log.Info("discovery: more changes of the same view", zap.Int("count", len(v.Changes)-i), zap.Uint64("generation", v.Generation))
			return
		}
		w.cfg.Log.Info(c.String(), zap.Uint64("generation", v.Generation), zap.Int("members", len(v.Members)), zap.String("cause", string(c.Cause)))
	}
}

// Recheck asks for a decision now, because a member's probe has changed its mind. It never blocks.
func (w *Watcher) Recheck() { poke(w.recheck) }

// poke leaves word in a channel of capacity 1.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Status says how the providers are doing; for any goroutine.
func (w *Watcher) Status() WatchStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	for _, p := range w.providers {
		h := *w.health[p.Name()]
		h.Skipped = maps.Clone(h.Skipped)
		s.Providers = append(s.Providers, h)
	}
	return s
}

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
	LastSuccess time.Time `json:"last_success,omitzero"`
	// Error is why its last read failed, "" when it did not.
	Error string `json:"error"`
	// ErrorSince is when it began to fail.
	ErrorSince time.Time `json:"error_since,omitzero"`
	// Stale says that its last answer may lag or lack the truth.
	Stale     bool `json:"stale"`
	Instances int  `json:"instances"`
	// Skipped counts the entries of its last answer that it did not take, by reason.
	Skipped map[string]int `json:"skipped"`
}
