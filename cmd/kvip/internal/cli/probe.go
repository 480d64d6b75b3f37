package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/kvip/kvip/healthcheck/probe"
)

type probeCommand struct {
	Broker  string        `arg:"" help:"The broker, host:port." placeholder:"HOST:PORT"`
	Cluster string        `help:"The cluster id that it must have." placeholder:"ID"`
	Timeout time.Duration `help:"How long the probe may take." default:"5s"`
	Checks  []string      `help:"Only these checks." placeholder:"NAME"`
}

// Run probes once and prints each step with its time.
func (c *probeCommand) Run(s streams) error {
	p, err := probe.New(probe.Config{
		Addr: c.Broker, NodeID: probe.AnyNode, Checks: c.Checks, ClientID: "kvip-probe-cli",
		ClusterID: func() string { return c.Cluster },
	})
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer p.Close()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	ctx, cancelTimeout := context.WithTimeout(ctx, c.Timeout)
	defer cancelTimeout()
	result := p.Run(ctx)
	for _, step := range result.Steps {
		outcome := "ok"
		if step.Reason != "" {
			outcome = string(step.Reason)
		}
		fmt.Fprintf(s.out, "%-14s %-14s %8.2f ms  %s\n", step.Name, outcome, float64(step.Took.Microseconds())/1000, step.Detail)
	}
	if !result.Verdict.Passed() {
		return fmt.Errorf("%s fails: %s: %s", c.Broker, result.Verdict.Reason, result.Verdict.Detail)
	}
	fmt.Fprintf(s.out, "%s passes: node %d of cluster %s, %d brokers\n", c.Broker, result.NodeID, result.ClusterID, len(result.Brokers))
	return nil
}
