package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/record"
)

// prepareWithin is how long the clients may take to connect before the load begins, beyond one operation's time.
const prepareWithin = 20 * time.Second

// firstWithin is how long the first of them may take at least.
const firstWithin = 3 * time.Second

// Run opens a session, measures once and closes it.
func Run(ctx context.Context, cfg Config) (*record.Result, error) {
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	result, err := s.Measure(ctx, time.Now())
	return result, errors.Join(err, s.Close())
}

// Session is a target with its clients made ready, to be measured once or more.
type Session struct {
	cfg    Config
	shards []*shard
	group  *errgroup.Group
	ended  context.Context // of the loops, by Close or because one failed
	end    context.CancelFunc
	names  sync.WaitGroup // lookups of names under way
}

// Open makes every client ready. The session must be closed.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	target, err := engine.Resolve(ctx, cfg.Target)
	if err != nil {
		return nil, err
	}
	if cfg.Rate != nil {
		cfg.Duration = cfg.Rate.Length()
	}
	s := &Session{cfg: cfg}
	if s.shards, err = newShards(&s.cfg, target); err != nil {
		return nil, err
	}
	loops, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end = end
	s.group, s.ended = errgroup.WithContext(loops)
	for _, sh := range s.shards {
		sh.background, sh.resolve = s.ended, s.names.Go
		s.group.Go(func() error { return sh.loop.Run(s.ended) })
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends every connection and goroutine.
func (s *Session) Close() error {
	s.end()
	err := s.group.Wait()
	s.names.Wait()
	return err
}

func newShards(cfg *Config, target *engine.Target) ([]*shard, error) {
	shards := make([]*shard, 0, cfg.Loops)
	for i := range cfg.Loops {
		clients := cfg.Clients / cfg.Loops
		if i < cfg.Clients%cfg.Loops {
			clients++
		}
		s, err := newShard(cfg, target, cfg.Part*cfg.Loops+i, clients)
		if err != nil {
			for _, made := range shards {
				made.loop.Close()
			}
			return nil, err
		}
		shards = append(shards, s)
	}
	return shards, nil
}

// lead is how far ahead of its first operation a load is announced to the loops.
const lead = 5 * time.Millisecond

// Measure drives the load once: warm-up, then the measurement, from a moment on that several processes may share; one that
// is past means now. It returns once every operation that began within the measurement has ended, or has run out of time.
// When ctx ends during the measurement, the result is of what was until then, and comes with ctx's cause.
func (s *Session) Measure(ctx context.Context, start time.Time) (*record.Result, error) {
	cfg := &s.cfg
	begin := engine.Now().Add(max(time.Until(start), lead))
	from := begin.Add(cfg.Warmup)
	until := from.Add(cfg.Duration)
	for _, sh := range s.shards {
		if err := s.load(ctx, sh, begin, from, until); err != nil {
			return nil, err
		}
	}
	if err := s.sleep(ctx, from); err != nil {
		return nil, err
	}
	s.observe(true)
	if err := s.each(ctx, func(sh *shard) { sh.rec.Begin() }); err != nil {
		return nil, err
	}
	var cut error
	patience := 2*cfg.Timeout + time.Second // an operation may wait for a client, and then have its time
	for at := from; at < until && cut == nil; {
		at = min(at.Add(cfg.Window), until)
		if err := s.sleep(ctx, at); err != nil {
			if ctx.Err() == nil {
				return nil, err
			}
			cut, patience, ctx = err, patienceCut, context.WithoutCancel(ctx)
			at = min(engine.Now(), at)
			if err := s.each(ctx, func(sh *shard) { sh.cut(at) }); err != nil {
				return nil, err
			}
		}
		if err := s.progress(ctx, at, from); err != nil {
			return nil, err
		}
	}
	s.observe(false)
	if err := s.drain(ctx, patience); err != nil {
		return nil, err
	}
	total := record.NewResult()
	return total, errors.Join(cut, s.each(ctx, func(sh *shard) { total.Merge(&sh.rec.Result) }))
}

// patienceCut is how long a measurement that was cut short waits for what it began.
const patienceCut = 500 * time.Millisecond

// load announces a measurement to a loop.
func (s *Session) load(ctx context.Context, sh *shard, begin, from, until engine.Time) error {
	if s.cfg.Rate == nil {
		return s.on(ctx, sh, func() { sh.run(begin, from, until, nil) })
	}
	beats, err := s.cfg.Rate.After(s.cfg.Warmup).Beats(s.cfg.Arrival, s.cfg.Seed, sh.index, s.cfg.Parts*s.cfg.Loops)
	if err != nil {
		return err
	}
	return s.on(ctx, sh, func() { sh.run(begin, from, until, beats) })
}

// progress notes the connections that are open at the end of a window, and tells how far the measurement is.
func (s *Session) progress(ctx context.Context, at, from engine.Time) error {
	p := Progress{Since: at.Sub(from)}
	err := s.each(ctx, func(sh *shard) {
		sh.rec.Holds(p.Since-1, sh.loop.Open())
		p.Answered += sh.rec.Answered
		p.Failed += sh.rec.TargetFailures()
		p.Local += sh.rec.LocalFailures()
		p.Open += sh.loop.Open()
		p.P99 = max(p.P99, time.Duration(sh.rec.Stages[record.Operation].ValueAtPercentile(99)))
	})
	if err == nil && s.cfg.Progress != nil {
		s.cfg.Progress(p)
	}
	return err
}

// drain ends the load and waits for what it began, for so long at most.
func (s *Session) drain(ctx context.Context, patience time.Duration) error {
	done := make(chan struct{}, len(s.shards))
	if err := s.each(ctx, func(sh *shard) {
		sh.rec.End()
		sh.stop(func() { done <- struct{}{} })
	}); err != nil {
		return err
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for range s.shards {
		select {
		case <-done:
		case <-limit.C:
			return s.each(ctx, (*shard).give)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ended.Done():
			return s.Close()
		}
	}
	return s.each(ctx, (*shard).give)
}

func (s *Session) observe(begin bool) {
	if s.cfg.Observe != nil {
		s.cfg.Observe(begin)
	}
}

// each runs f on every loop, one after the other.
func (s *Session) each(ctx context.Context, f func(*shard)) error {
	for _, sh := range s.shards {
		if err := s.on(ctx, sh, func() { f(sh) }); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) on(ctx context.Context, sh *shard, f func()) error {
	if sh.do(ctx, f) {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errors.New("a load generating loop has ended"), s.Close())
}

// prepare waits until every client of every shard can take operations. It gives up early on a target that nobody can reach.
func (s *Session) prepare(ctx context.Context) error {
	within, first := s.cfg.Timeout+prepareWithin, max(s.cfg.Timeout, firstWithin)
	limit, early := time.NewTimer(within), time.NewTimer(first)
	defer limit.Stop()
	defer early.Stop()
	for _, sh := range s.shards {
		ready := make(chan struct{})
		sh.loop.Do(func() { sh.prepare(func() { close(ready) }) })
		for waiting := true; waiting; {
			after := within
			select {
			case <-ready:
				waiting = false
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-early.C:
				after = first
			case <-limit.C:
			}
			missing, last := 0, ""
			sh.do(ctx, func() { missing, last = sh.waiting, sh.lastFault })
			if after == within || missing == len(sh.clients) {
				return fmt.Errorf("target %s: %d of %d clients could not be made ready within %s, last: %s",
					s.cfg.Target, missing, len(sh.clients), after, last)
			}
		}
	}
	return nil
}

func (s *Session) sleep(ctx context.Context, until engine.Time) error {
	t := time.NewTimer(until.Sub(engine.Now()))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ended.Done():
		return errors.Join(errors.New("a load generating loop has ended"), s.Close())
	}
}

// Window is the length of the slices in which results come.
func (s *Session) Window() time.Duration { return s.cfg.Window }
