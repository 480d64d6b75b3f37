// kvip-floor runs the benchmark's floor as a process of its own, so that its CPU time can be told from everything else's.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kvip/kvip/loadtest/floor"
)

type options struct {
	Listen    string        `help:"Address to listen on." default:"127.0.0.1:9192"`
	Answers   string        `help:"JSON file of ready answers: [{key, version, request_size, response}], response in base64." required:"" type:"existingfile"`
	Loops     int           `help:"Event loops." default:"1"`
	KeepAlive time.Duration `help:"TCP keep-alive idle time; 0 turns it off." default:"1m"`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("kvip-floor"), kong.Description("A bare gnet server that answers Kafka lookups with ready bytes."))
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "kvip-floor:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	answers, err := floor.ReadAnswers(o.Answers)
	if err != nil {
		return err
	}
	s, err := floor.New(floor.Config{Listen: o.Listen, Loops: o.Loops, KeepAlive: o.KeepAlive, Answers: answers})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}
