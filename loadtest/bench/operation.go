package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/scenario"
)

// operation is one row of the report: what clients do, and what they ask.
type operation struct {
	name     string
	scenario string
	all      bool // every topic; else the first one
	means    string
}

var operations = []operation{
	{"kept-all", "kept", true, "Metadata for all topics, kept connection"},
	{"kept-one", "kept", false, "Metadata for one topic, kept connection"},
	{"storm-all", "storm", true, "connect, ApiVersions, Metadata for all topics, close"},
	{"storm-one", "storm", false, "connect, ApiVersions, Metadata for one topic, close"},
}

func operationNames() []string {
	var names []string
	for _, op := range operations {
		names = append(names, op.name)
	}
	return names
}

func chooseOperations(names []string) ([]operation, error) {
	var chosen []operation
	for _, name := range names {
		i := slices.IndexFunc(operations, func(op operation) bool { return op.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown operation %q: one of %s", name, strings.Join(operationNames(), ", "))
		}
		chosen = append(chosen, operations[i])
	}
	return chosen, nil
}

func (op operation) lookup() kafka.Lookup {
	if op.all {
		return kafka.Lookup{All: true}
	}
	return kafka.Lookup{Topics: []string{topicName(0)}}
}

// config is the load for one cell.
func (op operation) config(o options, target string, clusterID string) scenario.Config {
	cfg := scenario.Defaults()
	cfg.Target, cfg.Scenario, cfg.Clients, cfg.ClusterID = target, op.scenario, o.Clients, clusterID
	cfg.Warmup, cfg.Duration = o.Warmup, o.Cell
	cfg.Lookup = op.lookup()
	return cfg
}

func topicName(i int) string { return fmt.Sprintf("bench-topic-with-a-usual-name-%04d", i) }
