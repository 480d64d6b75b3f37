// Package job is what a client program of this module has to do, told once for
// every Go library: read the flags, do the job of the mode, print the verdict.
//
// The contract (flags, modes, last line, exit code) is the one that
// loadtest/clients/README.md gives for every language.
package job

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	sendEvery   = 50 * time.Millisecond  // steady: one record per interval
	settle      = 500 * time.Millisecond // a new topic takes a moment to reach every broker
	onceLimit   = 60 * time.Second       // once: the whole program
	steadyExtra = 90 * time.Second       // steady and bootstraps: beyond --seconds
	flushLimit  = 45 * time.Second       // steady: from the last send to its answer
	drainLimit  = 80 * time.Second       // steady: from the last send to the last record back
	listLimit   = 10 * time.Second       // bootstraps: one client, from start to topic list
)

// Config is what the command line said.
type Config struct {
	Bootstrap string // the one address, host:port
	Topic     string
	Group     string // consumer group
	Mode      string // once, steady or bootstraps
	Count     int    // once: records
	Seconds   int    // steady, bootstraps: how long
}

// Record is a consumed record, as far as the job looks at it.
type Record struct{ Key, Value string }

// Producer sends with acks=all.
type Producer interface {
	// Send hands over one record and does not wait for its answer; done is
	// called once, from any goroutine.
	Send(ctx context.Context, key, value string, done func(error))
	Close()
}

// Consumer is one member of the group, reading from the earliest offset.
type Consumer interface {
	// Poll returns the next records; none and no error is fine.
	Poll(ctx context.Context) ([]Record, error)
	Close()
}

// Library is a client library's part of the job.
type Library struct {
	// Create makes the topic, or finds it, and says how.
	Create   func(context.Context, Config) (how string, err error)
	Producer func(Config) (Producer, error)
	Consumer func(Config) (Consumer, error)
	// List starts a fresh client, asks for the topics once and closes it.
	List func(context.Context, Config) error
}

// Main does the job with lib and exits the process: 0 after an OK line, 1 after a FAIL line.
func Main(lib Library) {
	cfg, err := parse(os.Args[1:])
	if err != nil {
		finish(err)
	}
	limit := onceLimit
	if cfg.Mode != "once" {
		limit = time.Duration(cfg.Seconds)*time.Second + steadyExtra
	}
	book := newLedger()
	// Libraries differ in how well they keep to a context, so the limit ends the process.
	time.AfterFunc(limit, func() {
		finish(fmt.Errorf("timeout after %v, %v", limit, book))
	})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch cfg.Mode {
	case "once":
		err = once(ctx, lib, cfg, book)
	case "steady":
		err = steady(ctx, lib, cfg, book)
	case "bootstraps":
		bootstraps(ctx, lib, cfg)
	}
	finish(err, book.String())
}

func parse(args []string) (Config, error) {
	var cfg Config
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	flags.StringVar(&cfg.Bootstrap, "bootstrap", "", "the one bootstrap address, host:port")
	flags.StringVar(&cfg.Topic, "topic", "", "topic to create or find")
	flags.StringVar(&cfg.Group, "group", "", "consumer group (default: one of its own)")
	flags.StringVar(&cfg.Mode, "mode", "once", "once, steady or bootstraps")
	flags.IntVar(&cfg.Count, "count", 20, "once: records to produce and consume")
	flags.IntVar(&cfg.Seconds, "seconds", 30, "steady, bootstraps: how long")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	switch cfg.Mode {
	case "once", "steady", "bootstraps":
	default:
		return cfg, fmt.Errorf("--mode %s: want once, steady or bootstraps", cfg.Mode)
	}
	if cfg.Bootstrap == "" || (cfg.Topic == "" && cfg.Mode != "bootstraps") {
		return cfg, errors.New("--bootstrap HOST:PORT and --topic NAME are required")
	}
	if cfg.Group == "" {
		cfg.Group = fmt.Sprintf("%s-%d", cfg.Topic, time.Now().UnixNano())
	}
	return cfg, nil
}

var finishing sync.Mutex // held for ever by whoever prints the verdict

// finish prints the one last line and exits.
func finish(err error, figures ...string) {
	finishing.Lock()
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
	fmt.Println("OK", figures[0])
	os.Exit(0)
}

func logf(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
}

func create(ctx context.Context, lib Library, cfg Config) error {
	how, err := lib.Create(ctx, cfg)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", cfg.Topic, err)
	}
	logf("topic %s: %s", cfg.Topic, how)
	time.Sleep(settle)
	return nil
}

func once(ctx context.Context, lib Library, cfg Config, book *ledger) error {
	if err := create(ctx, lib, cfg); err != nil {
		return err
	}
	producer, err := lib.Producer(cfg)
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	results := make(chan error, cfg.Count)
	for n := range cfg.Count {
		producer.Send(ctx, book.key(n), book.value(n), func(err error) {
			if err == nil {
				book.ack(n)
			}
			results <- err
		})
	}
	for range cfg.Count {
		if err := <-results; err != nil {
			return fmt.Errorf("produce: %w", err)
		}
	}
	producer.Close()
	logf("produced %d", cfg.Count)

	consumer, err := lib.Consumer(cfg)
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	for len(book.missing()) > 0 {
		records, err := consumer.Poll(ctx)
		if err != nil {
			return fmt.Errorf("consume: %w", err)
		}
		for _, r := range records {
			if err := book.see(r); err != nil {
				return err
			}
		}
	}
	consumer.Close()
	return nil
}
