// run has client libraries do a job against any bootstrap address, one after the other, and prints their verdicts:
//
//	go run ./loadtest/clients/run --bootstrap 127.0.0.1:9092 kcat franz-go
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/kvip/kvip/loadtest/clients"
)

type options struct {
	Bootstrap string   `required:"" placeholder:"HOST:PORT" help:"The one address that the clients are given."`
	Topic     string   `placeholder:"NAME" help:"Topic to create or find; one per client when not given."`
	Mode      string   `enum:"once,steady,bootstraps" default:"once" help:"Job: ${enum}."`
	Count     int      `default:"20" help:"Records, in mode once."`
	Seconds   int      `default:"30" help:"How long, in modes steady and bootstraps."`
	Verbose   bool     `short:"v" help:"Print everything that the clients write."`
	Clients   []string `arg:"" optional:"" help:"Names; all that run on Kafka 4 when not given."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Description("Has client libraries do a job against any bootstrap address."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	which, err := choose(o.Clients)
	if err != nil {
		return err
	}
	if err := clients.InstallAll(ctx, which...); err != nil {
		return err
	}
	bad := 0
	for _, c := range which {
		topic := o.Topic
		if topic == "" {
			topic = fmt.Sprintf("%s-%d", c.Name, time.Now().Unix())
		}
		r, err := c.Run(ctx, clients.Options{Bootstrap: o.Bootstrap, Topic: topic, Mode: o.Mode, Count: o.Count, Seconds: o.Seconds})
		if err != nil || !r.OK {
			bad++
		}
		if o.Verbose {
			fmt.Print(r.Output)
		}
		fmt.Printf("%-20s %s\n", c.Name, line(o.Mode, r, err))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d clients failed", bad, len(which))
	}
	return nil
}

func choose(names []string) ([]clients.Client, error) {
	var which []clients.Client
	var known []string
	for _, c := range clients.All {
		known = append(known, c.Name)
		if slices.Contains(names, c.Name) || (len(names) == 0 && c.Kafka4) {
			which = append(which, c)
		}
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("no client %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	return which, nil
}

func line(mode string, r clients.Result, err error) string {
	took := r.Took.Round(10 * time.Millisecond)
	switch {
	case err != nil:
		return err.Error()
	case !r.OK:
		return fmt.Sprintf("FAIL after %v: %s", took, r.Reason)
	case mode == clients.Bootstraps:
		return fmt.Sprintf("OK in %v: started %d, failed %d", took, r.Started, r.Failed)
	default:
		return fmt.Sprintf("OK in %v: produced %d, consumed %d, errors %d", took, r.Produced, r.Consumed, r.Errors)
	}
}
