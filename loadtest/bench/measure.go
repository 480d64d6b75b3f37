package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kvip/kvip/loadtest/cputime"
	"github.com/kvip/kvip/loadtest/record"
	"github.com/kvip/kvip/loadtest/scenario"
)

// measure runs the rounds. Round 0 warms everything up and is not kept. Within a round each operation goes over all
// targets, one after the other, so that what the machine does meanwhile meets them alike.
func measure(ctx context.Context, o options, ops []operation, s *stand, out io.Writer) (r *report, err error) {
	r = newReport(o, ops, s)
	began := time.Now()
	for round := range o.Rounds + 1 {
		for _, op := range ops {
			for _, t := range s.targets {
				c, err := measureCell(ctx, o, op, t, s.kafka.ClusterID())
				if err != nil {
					return nil, fmt.Errorf("%s of %s: %w", op.name, t.name, err)
				}
				if round > 0 {
					c.Round = round
					r.Cells = append(r.Cells, c)
				}
			}
		}
		fmt.Fprintf(out, "round %d of %d done after %s\n", round, o.Rounds, time.Since(began).Round(time.Second))
	}
	r.Idle, err = withoutLoad(ctx, s.targets)
	return r, err
}

// withoutLoad is what each target uses without clients, in cores: after the rounds, when a broker has its start behind it and
// all have what the load has left to do.
func withoutLoad(ctx context.Context, targets []target) (map[string]float64, error) {
	if err := pause(ctx, 2*time.Second); err != nil {
		return nil, err
	}
	used, err := cores(ctx, 5*time.Second, targets...)
	if err != nil {
		return nil, err
	}
	idle := map[string]float64{}
	for i, t := range targets {
		idle[t.name] = used[i]
	}
	return idle, nil
}

// cores is what targets use for a while, in cores.
func cores(ctx context.Context, d time.Duration, targets ...target) ([]float64, error) {
	from, err := clocks(targets...)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, d); err != nil {
		return nil, err
	}
	to, err := clocks(targets...)
	if err != nil {
		return nil, err
	}
	used := make([]float64, len(targets))
	for i := range targets {
		used[i] = (to[i] - from[i]).Seconds() / d.Seconds()
	}
	return used, nil
}

// clocks are the targets' CPU clocks.
func clocks(targets ...target) (all []time.Duration, err error) {
	for _, t := range targets {
		at, err := cputime.Of(t.pid)
		if err != nil {
			return nil, err
		}
		all = append(all, at)
	}
	return all, nil
}

// measureCell loads one target with one operation.
func measureCell(ctx context.Context, o options, op operation, t target, clusterID string) (cell, error) {
	return loadCell(ctx, op.name, t, op.config(o, t.addr, clusterID))
}

// loadCell loads one target and reads its CPU clock at both ends of the measurement.
func loadCell(ctx context.Context, operation string, t target, cfg scenario.Config) (cell, error) {
	var from, to time.Duration
	var clock error
	cfg.Observe = func(begin bool) {
		at, err := cputime.Of(t.pid)
		if err != nil {
			clock = err
		}
		if begin {
			from = at
		} else {
			to = at
		}
	}
	result, err := scenario.Run(ctx, cfg)
	switch {
	case err != nil:
		return cell{}, err
	case clock != nil:
		return cell{}, clock
	case result.TargetFailures()+result.LocalFailures() > 0:
		return cell{}, fmt.Errorf("operations failed: %s", failures(result))
	case result.Answered == 0:
		return cell{}, fmt.Errorf("no operation was answered within %s", cfg.Duration)
	}
	return cell{
		Operation: operation, Target: t.name,
		CPUMicros: float64((to - from).Nanoseconds()) / 1e3 / float64(result.Answered),
		Cores:     (to - from).Seconds() / result.Elapsed.Seconds(),
		Rate:      result.Rate(), Answered: result.Answered, Bytes: float64(result.Bytes) / float64(result.Answered),
		P50Micros:  float64(result.Stages[record.Operation].ValueAtPercentile(50)) / 1e3,
		P99Micros:  float64(result.Stages[record.Operation].ValueAtPercentile(99)) / 1e3,
		P999Micros: float64(result.Stages[record.Operation].ValueAtPercentile(99.9)) / 1e3,
		MaxMicros:  float64(result.Stages[record.Operation].Max()) / 1e3,

		LagP99Micros: float64(result.Stages[record.Lag].ValueAtPercentile(99)) / 1e3,
	}, nil
}
