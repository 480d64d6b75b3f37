package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvip/kvip/loadtest/schedule"
)

const (
	ceilingCells = 3
	openCell     = 3 * time.Second
)

// bigHAProxy is how long lookups take at half of the rate that HAProxy in TCP mode before the brokers can do, in an open
// loop: from kvip, from the floor and from HAProxy. Brokers and generator share the CPUs with what is measured, so the
// generator's own lag is told beside each figure.
func bigHAProxy(ctx context.Context, r *bigRun) error {
	o := r.o
	o.Kvip, o.Targets = r.kvip, []string{"kvip", "floor", "haproxy"}
	s, err := setUp(ctx, o, r.out)
	r.stand.undo = append(r.stand.undo, s.close)
	if err != nil {
		return err
	}
	haproxy := slices.IndexFunc(s.targets, func(t target) bool { return t.name == "haproxy" })
	if haproxy < 0 {
		return errors.New("HAProxy is not installed (apt-get install haproxy)")
	}
	for _, name := range []string{"kept-one", "storm-one"} {
		if !slices.Contains(o.Operations, name) {
			continue
		}
		op, err := chooseOperations([]string{name})
		if err != nil {
			return err
		}
		if err := r.halfOf(ctx, op[0], s, s.targets[haproxy]); err != nil {
			return err
		}
	}
	return nil
}

// halfOf loads all targets with half of what one of them can do.
func (r *bigRun) halfOf(ctx context.Context, op operation, s *stand, ceiling target) error {
	var rates []float64
	for i := range ceilingCells + 1 {
		c, err := measureCell(ctx, r.o, op, ceiling, s.kafka.ClusterID())
		if err != nil {
			return err
		}
		if i > 0 { // the first warms up the brokers
			rates = append(rates, c.Rate)
		}
	}
	r.say(op.name+": HAProxy's ceiling, closed loop", "/s", 0, rates...)
	half := spreadOf(rates).Median / 2
	cells := map[string][]cell{}
	for round := range r.o.Rounds + 1 {
		for _, t := range s.targets {
			cfg := op.config(r.o, t.addr, s.kafka.ClusterID())
			var err error
			if cfg.Rate, err = schedule.Parse(fmt.Sprintf("%.0f", half), openCell); err != nil {
				return err
			}
			cfg.Duration = openCell
			c, err := loadCell(ctx, op.name, t, cfg)
			if err != nil {
				return fmt.Errorf("%s of %s: %w", op.name, t.name, err)
			}
			if round > 0 {
				cells[t.name] = append(cells[t.name], c)
			}
		}
	}
	p99 := func(c cell) float64 { return c.P99Micros / 1e3 }
	for _, t := range s.targets {
		r.say(fmt.Sprintf("%s at %.0f/s: p99, %s", op.name, half, t.name), "ms", 0, pluck(cells[t.name], p99)...)
		r.say("... p50", "ms", 0, pluck(cells[t.name], func(c cell) float64 { return c.P50Micros / 1e3 })...)
		r.say("... p99 of the generator's lag, which is in them", "ms", 0, pluck(cells[t.name], func(c cell) float64 { return c.LagP99Micros / 1e3 })...)
	}
	of := func(name string) []float64 { return pluck(cells[name], p99) }
	r.say(op.name+": p99, kvip / floor", "", 1.5, over(of("kvip"), of("floor"))...)
	r.say(op.name+": p99, kvip / HAProxy", "", 0.35, over(of("kvip"), of("haproxy"))...)
	return nil
}
