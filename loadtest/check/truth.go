package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvip/kvip/loadtest/kafka"
)

// Truth is a log of what brokers say of themselves and their cluster, asked directly and often, to hold a target's answers
// against: each thing that an answer says must have been said by some broker at most a bound before it was asked for, or
// right afterwards. It is safe for concurrent use.
//
// Limits: what was so for less than the time between two askings may have been seen by the target alone. That a group has
// no coordinator yet, which brokers say for a moment while it moves, is believed between two askings of a broker whose
// answers on that group differ; all else must have been heard. A broker that comes back from a freeze says old things for
// a moment, and a target that repeats them is believed (epochs that go back are found by [Checker.Accept] and
// [Checker.Across]).
type Truth struct {
	cfg TruthConfig

	mu    sync.Mutex
	spans map[fact]*spans
	heard time.Duration // when a broker was heard last
	count uint64        // answers of brokers
	ready chan struct{} // closed with the first of them
}

// TruthConfig says whom a Truth asks, and what it is held to.
type TruthConfig struct {
	Brokers  []string // host:port of each broker to ask
	Groups   []string // whose coordinators are asked for; may be empty
	ClientID string
	// Every is from one asking of a broker to the next; default 100 ms.
	Every time.Duration
	// Bound is how old an answer may be: the time between the last broker's saying so and the request. Default 3 s.
	Bound time.Duration
	// Now is the clock of Told.
	Now func() time.Duration
}

// timeout is how long a broker may take to answer the truth, connecting included.
const timeout = time.Second

// NewTruth returns a log that is empty until Run.
func NewTruth(cfg TruthConfig) *Truth {
	cfg.Every = cmp.Or(cfg.Every, 100*time.Millisecond)
	cfg.Bound = cmp.Or(cfg.Bound, 3*time.Second)
	return &Truth{cfg: cfg, spans: map[fact]*spans{}, ready: make(chan struct{})}
}

// Wait is how long after an answer a broker may still be the first to be heard saying the same: judge no earlier.
func (t *Truth) Wait() time.Duration { return timeout + t.cfg.Every }

// Bound is how old an answer may be.
func (t *Truth) Bound() time.Duration { return t.cfg.Bound }

// Heard is how many answers of brokers the log has.
func (t *Truth) Heard() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// spans are when brokers said one thing, in order; what they went on saying is one span.
type spans []span

type span struct{ from, to time.Duration }

// at notes that a broker said so in an answer that was asked for at from and came at to. Two times that are no further
// apart than quiet are one span.
func (s *spans) at(from, to, quiet time.Duration) {
	if n := len(*s); n > 0 && from <= (*s)[n-1].to+quiet {
		last := &(*s)[n-1]
		last.from, last.to = min(last.from, from), max(last.to, to)
		return
	}
	*s = append(*s, span{from, to})
}

// last is the newest time up to limit at which a broker said so; ok is false when none had by then.
func (s spans) last(limit time.Duration) (at time.Duration, ok bool) {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i].from <= limit {
			return min(s[i].to, limit), true
		}
	}
	return 0, false
}

// note adds what a broker said.
func (t *Truth) note(facts []fact, from, to time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range facts {
		s := t.spans[f]
		if s == nil {
			s = &spans{}
			t.spans[f] = s
		}
		s.at(from, to, 2*t.cfg.Every)
	}
	t.heard = max(t.heard, to)
	if t.count++; t.count == 1 {
		close(t.ready)
	}
}

// Told is an answer that a target gave: when it was asked for, and when it came.
type Told struct {
	View      *View
	Asked, At time.Duration
}

// held is what a truth remembers of a view: brokers went on saying all of it until then.
type held struct {
	by    *Truth
	until time.Duration
}

// during says whether any of the spans has a moment in common with the time from one to another.
func (s *spans) during(from, to time.Duration) bool {
	return s != nil && slices.ContainsFunc(*s, func(one span) bool { return one.from <= to && from <= one.to })
}

// Judge says how old an answer is, 0 when a broker still said the same after it was asked for, or what in it is not true:
// no broker ever said so, or the last one did longer before it was asked for than the bound. Call it Wait after the
// answer, for one view from one goroutine at a time.
func (t *Truth) Judge(told Told) (age time.Duration, untrue string) {
	v := told.View
	if v.held.by == t && told.Asked <= v.held.until {
		return 0, ""
	}
	limit := told.At + t.Wait()
	until := limit
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range v.facts {
		if f.passing() && t.spans[fact{f.of, changing}].during(told.Asked, told.At) {
			return 0, "" // it is all that its answer says
		}
		s := t.spans[f]
		if s == nil {
			return 0, t.lie(f, "no broker said so, "+t.quiet(told))
		}
		last, ok := s.last(limit)
		if !ok {
			return 0, t.lie(f, fmt.Sprintf("no broker said so until %s after the answer", ((*s)[0].from-told.At).Round(time.Millisecond)))
		}
		if old := told.Asked - last; old > t.cfg.Bound {
			return 0, t.lie(f, fmt.Sprintf("the last broker said so %s before it was asked for, %s", old.Round(time.Millisecond), t.quiet(told)))
		}
		until = min(until, last)
	}
	v.held = held{t, until}
	return max(0, told.Asked-until), ""
}

func (t *Truth) lie(f fact, why string) string { return f.String() + ": " + why }

// quiet says when brokers were heard at all, for a truth that hears nobody finds everything untrue.
func (t *Truth) quiet(told Told) string {
	if t.heard >= told.Asked {
		return "and brokers were heard since"
	}
	return fmt.Sprintf("and no broker was heard for %s before", (told.Asked - t.heard).Round(time.Millisecond))
}

// Ready waits until a broker has been heard.
func (t *Truth) Ready(ctx context.Context) error {
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run asks every broker until ctx ends.
func (t *Truth) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, addr := range t.cfg.Brokers {
		all.Go(func() { newWitness(t, addr).run(ctx) })
	}
	all.Wait()
}

// Versions that the truth asks with, at most.
var asksWith = map[int16]int16{
	kafka.KeyMetadata: kafka.MaxMetadata, kafka.KeyFindCoordinator: kafka.MaxFindCoordinator,
}
