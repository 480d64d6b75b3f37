package loadtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/events"
	"github.com/kvip/kvip/loadtest/report"
)

// gate lets every process of a run begin a turn at one moment.
type gate func(ctx context.Context) (time.Time, error)

func atOnce(context.Context) (time.Time, error) { return time.Now(), nil }

// alone drives the whole load from this process.
func (p *plan) alone(ctx context.Context, todo *events.File) (*report.Run, error) {
	if todo == nil {
		return p.drive(ctx, atOnce, nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var done chan []events.Done
	run, err := p.drive(ctx, atOnce, func(start time.Time) {
		done = make(chan []events.Done, 1)
		go func() { done <- todo.Run(ctx, start) }()
	})
	cancel()
	if done != nil {
		happened := reported(<-done)
		if run != nil {
			run.Events = happened
		}
	}
	return run, err
}

// drive measures: the calibration, then the targets in turns. begun is told when the measurement of the first target
// begins.
func (p *plan) drive(ctx context.Context, pass gate, begun func(time.Time)) (run *report.Run, err error) {
	run = p.newRun()
	if p.Floor != "" {
		calibrated, err := p.calibration().measure(ctx, pass, []side{{target: p.Floor, name: "calibration"}}, 1, func() float64 { return 0 })
		if err != nil {
			return nil, fmt.Errorf("calibration: %w", err)
		}
		one := calibrated[0].result(false)
		run.Calibration = &one
		run.Environment.Warnings = append(run.Environment.Warnings, void(&one, run.Loop, calibrated[0].total.Waited)...)
	}
	stop, err := p.hearTruth(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	rounds := 1
	if p.Vs != "" {
		rounds = p.Rounds
	}
	stands, err := p.measure(ctx, pass, p.sides(), rounds, func() float64 {
		if run.Start.IsZero() {
			run.Start = time.Now()
			if begun != nil {
				begun(run.Start)
			}
			return 0
		}
		return time.Since(run.Start).Seconds()
	})
	stands = slices.DeleteFunc(stands, func(st *stand) bool { return len(st.found.Rounds) == 0 })
	if err != nil && (ctx.Err() == nil || len(stands) == 0) {
		return nil, err
	}
	if err != nil {
		run.Cut = err.Error()
	}
	for _, st := range stands {
		s := st.result(p.Vs != "")
		for _, w := range s.Windows {
			run.Duration = max(run.Duration, w.At+w.Seconds)
		}
		run.Sides = append(run.Sides, s)
		run.Verdict.Void = append(run.Verdict.Void, void(&s, run.Loop, st.total.Waited)...)
		run.Environment.Warnings = append(run.Environment.Warnings, warn(&s, st.total.Refused)...)
		if st.sampler.gone {
			run.Environment.Warnings = append(run.Environment.Warnings, fmt.Sprintf("%s: process %d ended during the run, and its processor time with it", s.Label(), s.CPU.PID))
		}
	}
	return run, nil
}

// hearTruth begins to ask the brokers that answers are held against; stop ends it.
func (p *plan) hearTruth(ctx context.Context) (stop func(), err error) {
	truth := p.config.Truth
	if truth == nil {
		return func() {}, nil
	}
	running, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		truth.Run(running)
	}()
	stop = func() { cancel(); <-done }
	first, enough := context.WithTimeoutCause(ctx, truthWithin, fmt.Errorf("--truth: none of %s has answered within %s", strings.Join(p.Truth, ", "), truthWithin))
	defer enough()
	if err := truth.Ready(first); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// truthWithin is how long the first broker may take to tell the truth.
const truthWithin = 3 * time.Second

// measure drives sides in turns.
func (p *plan) measure(ctx context.Context, pass gate, sides []side, rounds int, begin func() float64) (stands []*stand, err error) {
	defer func() {
		for _, st := range slices.Backward(stands) {
			if st.session != nil {
				err = errors.Join(err, st.session.Close())
			}
		}
	}()
	for _, s := range sides {
		st, err := p.open(ctx, s)
		if err != nil {
			return stands, err
		}
		stands = append(stands, st)
	}
	for range rounds {
		for _, st := range stands {
			start, err := pass(ctx)
			if err != nil {
				return stands, err
			}
			if err := st.turn(ctx, start, begin); err != nil {
				return stands, err
			}
		}
	}
	return stands, nil
}
