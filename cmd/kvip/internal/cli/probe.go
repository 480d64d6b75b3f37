package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
)

type probeCommand struct {
	Broker  string        `arg:"" help:"The broker, host:port." placeholder:"HOST:PORT"`
	Cluster string        `help:"The cluster id that it must have." placeholder:"ID"`
	Timeout time.Duration `help:"How long the probe may take." default:"5s"`
	Checks  []string      `help:"Only these checks." placeholder:"NAME"`
}

// hints say for the reasons of a failure what to look at.
var hints = map[healthcheck.Reason]string{
	probe.ReasonRefused:      "nothing listens there: is the broker up, and is this the port of its listener for clients?",
	probe.ReasonConnect:      "no way to it from this machine: the name, the route, a firewall",
	probe.ReasonTimeout:      "it accepts and does not answer: frozen, overloaded, no Kafka, or a firewall that swallows packets",
	probe.ReasonClosed:       "a TLS or SASL listener closes on plain requests, and so does what is not Kafka: take the port of the plain listener",
	probe.ReasonBadAnswer:    "this is no port of Kafka, or one that speaks TLS: compare with listeners= in server.properties",
	probe.ReasonVersion:      "kvip knows Kafka from 0.10 on",
	probe.ReasonController:   "this is a KRaft controller: register the brokers' listener for clients",
	probe.ReasonNoBrokers:    "a broker that is starting answers so for some seconds",
	probe.ReasonWrongCluster: "this address belongs to another cluster now, or the pool does",
	probe.ReasonFenced:       "the cluster has fenced it: starting, or cut off from the controller; its log says which",
	probe.ReasonNotListed:    "register it under an address of its advertised.listeners, or give its node id (meta node_id)",
	probe.ReasonWrongNode:    "the registry's meta node_id is not the broker's",
}

// hint says what to look at after a failure.
func hint(r probe.Result) string {
	if r.Verdict.Reason == probe.ReasonTimeout && len(r.Steps) > 0 && r.Steps[len(r.Steps)-1].Name == "connect" {
		return "nothing answers at that address: is the machine up, the address right, and no firewall between?"
	}
	return hints[r.Verdict.Reason]
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
		if hint := hint(result); hint != "" {
			fmt.Fprintln(s.out, "hint: "+hint)
		}
		return fmt.Errorf("%s fails: %s: %s", c.Broker, result.Verdict.Reason, result.Verdict.Detail)
	}
	fmt.Fprintf(s.out, "%s passes: node %d of cluster %s, %d brokers\n", c.Broker, result.NodeID, result.ClusterID, len(result.Brokers))
	return nil
}
