package job

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// steady produces and consumes side by side for cfg.Seconds, whatever happens to
// the brokers, then checks that every acknowledged record came back.
func steady(ctx context.Context, lib Library, cfg Config, book *ledger) error {
	book.countErrors = true
	if err := create(ctx, lib, cfg); err != nil {
		return err
	}
	producer, err := lib.Producer(cfg)
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	consumer, err := lib.Consumer(cfg)
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	read := make(chan error, 1)
	go func() { read <- consume(reading, consumer, book) }()

	var inFlight sync.WaitGroup
	tick := time.NewTicker(sendEvery)
	end := time.After(time.Duration(cfg.Seconds) * time.Second)
sending:
	for n := 0; ; n++ {
		inFlight.Add(1)
		producer.Send(ctx, book.key(n), book.value(n), func(err error) {
			defer inFlight.Done()
			if err != nil {
				book.failed("send %d: %v", n, err)
				return
			}
			book.ack(n)
		})
		select {
		case <-end:
			break sending
		case <-tick.C:
		}
	}
	deadline := time.Now().Add(drainLimit)
	answered := make(chan struct{})
	go func() { inFlight.Wait(); close(answered) }()
	select {
	case <-answered:
		producer.Close()
	case <-time.After(flushLimit):
		book.failed("some sends got no answer within %v", flushLimit)
	}
	for len(book.missing()) > 0 && time.Now().Before(deadline) {
		select {
		case err := <-read:
			return err // only a wrong record ends the reader early
		case <-time.After(sendEvery):
		}
	}
	if missing := book.missing(); len(missing) > 0 {
		return fmt.Errorf("%d acknowledged records were not consumed, first %d, %v", len(missing), missing[0], book)
	}
	stop()
	if err := <-read; err != nil {
		return err
	}
	consumer.Close()
	return nil
}

// consume reads until ctx ends; an error of the library is counted, a wrong record is returned.
func consume(ctx context.Context, consumer Consumer, book *ledger) error {
	for ctx.Err() == nil {
		records, err := consumer.Poll(ctx)
		if err != nil && ctx.Err() == nil {
			book.failed("consume: %v", err)
			time.Sleep(settle)
		}
		for _, r := range records {
			if err := book.see(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// bootstraps starts a fresh client every second and exits after an OK line,
// whatever came of them: the caller judges how many may fail.
func bootstraps(ctx context.Context, lib Library, cfg Config) {
	var running sync.WaitGroup
	var failed atomic.Int64
	for n := range cfg.Seconds {
		running.Go(func() {
			one, cancel := context.WithTimeout(ctx, listLimit)
			defer cancel()
			begin := time.Now()
			if err := lib.List(one, cfg); err != nil {
				failed.Add(1)
				logf("error: bootstrap %d after %v: %v", n, time.Since(begin).Round(time.Millisecond), err)
			}
		})
		time.Sleep(time.Second)
	}
	running.Wait()
	finish(nil, fmt.Sprintf("started=%d failed=%d", cfg.Seconds, failed.Load()))
}
