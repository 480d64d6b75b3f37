package loadtest

import (
	"context"
	"errors"
	"time"

	"github.com/kvip/kvip/loadtest/cputime"
	"github.com/kvip/kvip/loadtest/kernel"
	"github.com/kvip/kvip/loadtest/record"
	"github.com/kvip/kvip/loadtest/report"
	"github.com/kvip/kvip/loadtest/scenario"
)

// stand is a target with its clients ready, and what its turns have found so far.
type stand struct {
	side
	session *scenario.Session
	found   report.Side
	total   *record.Result
	sampler *sampler
}

// open makes a target's clients ready.
func (p *plan) open(ctx context.Context, s side) (*stand, error) {
	st := &stand{side: s, total: record.NewResult(), sampler: &sampler{pid: s.pid}}
	st.found = report.Side{Target: s.target, Name: s.name}
	cfg := p.config
	cfg.Target = s.target
	if s.target == p.Floor {
		cfg.Truth = nil // it repeats what the target said before the run
	}
	cfg.Observe = st.sampler.observe
	cfg.Progress = func(progress scenario.Progress) {
		st.sampler.sample()
		p.show(s.target, progress)
	}
	var err error
	st.session, err = scenario.Open(ctx, cfg)
	return st, err
}

// turn measures once, from a moment on. at is the measurement's begin on the run's clock. A measurement that ctx has cut
// short counts, too; its error is ctx's cause.
func (st *stand) turn(ctx context.Context, start time.Time, begin func() float64) error {
	var at float64
	st.sampler.begun = func() { at = begin() }
	result, err := st.session.Measure(ctx, start)
	if result == nil || st.sampler.fault != nil {
		return errors.Join(err, st.sampler.fault)
	}
	samples := st.sampler.samples
	round := report.Round{
		At: at, Seconds: result.Elapsed.Seconds(), Counts: counts(&result.Counts),
		Latency: report.Histogram{Histogram: result.Stages[record.Operation]},
	}
	window := result.Elapsed.Seconds() / float64(len(result.Windows))
	if len(result.Windows) > 1 {
		window = st.session.Window().Seconds()
	}
	for i, w := range result.Windows {
		rw := report.Window{
			At: at + float64(i)*window, Seconds: min(window, round.Seconds-float64(i)*window), Counts: counts(&w.Counts),
			Classes: classes(&w.Counts), Open: w.Open, Latency: report.Histogram{Histogram: w.Latency},
		}
		if i < len(samples) {
			rw.CPU, rw.Kernel = samples[i].cpu.Seconds(), samples[i].kernel
			round.CPU += rw.CPU
		}
		st.found.Windows = append(st.found.Windows, rw)
	}
	st.found.Rounds = append(st.found.Rounds, round)
	st.total.Append(result)
	return err
}

// result is what all turns found.
func (st *stand) result(interleaved bool) report.Side {
	s, r := st.found, st.total
	s.Counts, s.Elapsed, s.Bytes = counts(&r.Counts), r.Elapsed.Seconds(), r.Bytes
	s.PartitionErrors, s.CoordinatorErrors = r.PartitionErrors, r.CoordinatorErrors
	s.Stages = map[string]report.Histogram{}
	for stage, h := range r.Stages {
		if h.TotalCount() > 0 {
			s.Stages[record.Stage(stage).String()] = report.Histogram{Histogram: h}
		}
	}
	s.Failures = failures(r)
	grown := kernel.Counters{}
	cpu := 0.0
	for _, w := range s.Windows {
		cpu += w.CPU
		grown.Add(w.Kernel)
	}
	s.Kernel = grown
	if st.pid > 0 {
		s.CPU = &report.CPU{PID: st.pid, Seconds: cpu}
	}
	if !interleaved {
		s.Rounds = nil
	}
	return s
}

// sampler reads the target's processor time and the kernel's counters at the ends of windows.
type sampler struct {
	pid     int
	begun   func()
	samples []sample
	last    time.Duration
	before  kernel.Counters
	gone    bool // the process has ended meanwhile, as it may when the run is about that
	fault   error
}

type sample struct {
	cpu    time.Duration
	kernel kernel.Counters
}

func (s *sampler) observe(begin bool) {
	if begin {
		s.samples, s.fault = nil, nil
		s.last, s.before = s.read()
		s.begun()
	}
}

func (s *sampler) sample() {
	cpu, now := s.read()
	s.samples = append(s.samples, sample{cpu - s.last, now.Since(s.before)})
	s.last, s.before = cpu, now
}

func (s *sampler) read() (time.Duration, kernel.Counters) {
	now, err := kernel.Read()
	cpu := s.last
	if s.pid > 0 && err == nil && !s.gone {
		if cpu, err = cputime.Of(s.pid); err != nil && s.before != nil {
			cpu, err, s.gone = s.last, nil, true
		}
	}
	if err != nil && s.fault == nil {
		s.fault = err
	}
	return cpu, now
}
