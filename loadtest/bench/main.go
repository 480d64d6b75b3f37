// Bench measures the server's CPU time per request of kvip, of the floor (a bare gnet server with ready bytes), of a real
// broker and, where it is installed, of HAProxy before the brokers: interleaved in one run, over one real Kafka cluster.
// `make bench` runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

type options struct {
	Kvip       string        `help:"kvip binary; empty: built from ./cmd/kvip." type:"path"`
	Targets    []string      `help:"What to measure: kvip, floor, broker, haproxy (skipped with a note where it is not installed)." default:"kvip,floor,broker,haproxy"`
	Operations []string      `help:"What to ask: ${operations}." default:"kept-all,kept-one,storm-all,storm-one"`
	Rounds     int           `help:"Rounds; each measures every target once per operation." default:"5"`
	Cell       time.Duration `help:"Length of one measurement." default:"2s"`
	Warmup     time.Duration `help:"Load before each measurement." default:"300ms"`
	Clients    int           `help:"Connections (kept) or bootstraps under way (storm)." default:"64"`
	Topics     int           `help:"Topics in the cluster." default:"100"`
	Partitions int           `help:"Partitions of each topic; three replicas each." default:"6"`
	Kafka      string        `help:"Kafka version; empty: the lab's default."`
	Loops      int           `help:"Event loops of the floor; 0: one per CPU, as kvip's front has." default:"0"`
	JSON       string        `name:"json" help:"File for the figures as JSON." type:"path"`
	MaxRatio   float64       `help:"Fail when kvip's median ratio to the floor is above this; 0: do not judge." default:"0"`
	Big        []string      `help:"Measure these instead, over stub clusters of sizes that no machine runs: ${big}." placeholder:"NAME,..."`
	Profile    string        `help:"With --big probes: file for a CPU profile of kvip." type:"path"`
	Fleet      fleetMember   `embed:"" prefix:"fleet-" hidden:""`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("bench"), kong.Description("Server CPU time per request: kvip, the floor, a broker, HAProxy."),
		kong.Vars{"operations": strings.Join(operationNames(), ", "), "big": strings.Join(bigNames(), ", ")})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	switch {
	case o.Fleet.Target != "":
		return o.Fleet.run(os.Stdin, out)
	case len(o.Big) > 0:
		return runBig(ctx, o, out)
	}
	ops, err := chooseOperations(o.Operations)
	if err != nil {
		return err
	}
	if o.Rounds < 1 || o.Clients < 1 || o.Cell <= 0 {
		return fmt.Errorf("%d rounds, %d clients, cells of %s: all must be positive", o.Rounds, o.Clients, o.Cell)
	}
	stand, err := setUp(ctx, o, out)
	defer func() { err = errors.Join(err, stand.close()) }()
	if err != nil {
		return err
	}
	report, err := measure(ctx, o, ops, stand, out)
	if err != nil {
		return err
	}
	report.print(out)
	if o.JSON != "" {
		if err := report.write(o.JSON); err != nil {
			return err
		}
	}
	return report.judge(o.MaxRatio)
}
