package scenario

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/record"
)

// prepareWithin is how long the clients may take to connect before the load begins, beyond one operation's time.
const prepareWithin = 20 * time.Second

// Run drives a closed loop: each client begins an operation when its last one has ended. It finds a ceiling; its
// latencies leave out whatever the target kept the clients from asking. Run returns when the measurement is over, every
// connection is closed, and no goroutine is left.
func Run(ctx context.Context, cfg Config) (*record.Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	target, err := engine.Resolve(ctx, cfg.Target)
	if err != nil {
		return nil, err
	}
	shards, err := newShards(&cfg, target)
	if err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	loops, stop := context.WithCancel(ctx)
	defer stop()
	for _, s := range shards {
		group.Go(func() error { return s.loop.Run(loops) })
	}
	var elapsed time.Duration
	group.Go(func() (err error) {
		defer stop()
		elapsed, err = measure(ctx, &cfg, shards)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	total := record.NewResult()
	for _, s := range shards {
		s.rec.Elapsed = elapsed
		total.Merge(&s.rec.Result)
	}
	return total, nil
}

func newShards(cfg *Config, target *engine.Target) ([]*shard, error) {
	shards := make([]*shard, 0, cfg.Loops)
	for i := range cfg.Loops {
		clients := cfg.Clients / cfg.Loops
		if i < cfg.Clients%cfg.Loops {
			clients++
		}
		s, err := newShard(cfg, target, i, clients)
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

// measure prepares the clients, lets the load warm up, counts for the run's duration, and returns how long that was.
func measure(ctx context.Context, cfg *Config, shards []*shard) (time.Duration, error) {
	if err := prepare(ctx, cfg, shards); err != nil {
		return 0, err
	}
	each := func(f func(*shard)) error {
		for _, s := range shards {
			if !s.do(ctx, func() { f(s) }) {
				return context.Cause(ctx)
			}
		}
		return nil
	}
	observe := func(begin bool) {
		if cfg.Observe != nil {
			cfg.Observe(begin)
		}
	}
	if cfg.Warmup > 0 {
		if err := each((*shard).run); err != nil {
			return 0, err
		}
		if err := sleep(ctx, cfg.Warmup); err != nil {
			return 0, err
		}
	}
	observe(true)
	began := engine.Now()
	if err := each(func(s *shard) {
		s.rec.Begin()
		s.run()
	}); err != nil {
		return 0, err
	}
	if err := sleep(ctx, cfg.Duration); err != nil {
		return 0, err
	}
	if err := each(func(s *shard) { s.rec.End() }); err != nil {
		return 0, err
	}
	elapsed := engine.Now().Sub(began)
	observe(false)
	return elapsed, each(func(s *shard) { s.running = false })
}

// prepare waits until every client of every shard can take operations.
func prepare(ctx context.Context, cfg *Config, shards []*shard) error {
	limit, cancel := context.WithTimeout(ctx, cfg.Timeout+prepareWithin)
	defer cancel()
	for _, s := range shards {
		ready := make(chan struct{})
		s.loop.Do(func() { s.prepare(func() { close(ready) }) })
		select {
		case <-ready:
		case <-limit.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			missing, last := 0, ""
			s.do(ctx, func() { missing, last = s.waiting, s.lastFault })
			return fmt.Errorf("target %s: %d of %d clients could not be made ready within %s, last: %s",
				cfg.Target, missing, len(s.clients), cfg.Timeout+prepareWithin, last)
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
