package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// examplesKept is how many examples of a class of failures a merged run keeps.
const examplesKept = 5

// Merge adds up the runs of several generators, on one machine or more, that loaded the same targets at the same time:
// counts and histograms without loss, windows by wall time (the machines' clocks must agree to a part of a window). The
// verdict is void when a part's is; assertions are evaluated anew, on the sum. The parts stay as they are.
func Merge(runs []*Run) (*Run, error) {
	if len(runs) == 0 {
		return nil, errors.New("report: no run to merge")
	}
	if err := mergeable(runs); err != nil {
		return nil, fmt.Errorf("report: merge: %w", err)
	}
	first := runs[0]
	sum := &Run{
		Schema: Schema, Title: first.Title, Scenario: first.Scenario, Loop: first.Loop, Arrival: first.Arrival,
		Seed: first.Seed, Start: first.Start, Environment: first.Environment,
	}
	for _, r := range runs {
		if r.Start.Before(sum.Start) {
			sum.Start = r.Start
		}
	}
	for _, r := range runs {
		sum.Cut = cmp.Or(sum.Cut, r.Cut)
		sum.Clients += r.Clients
		sum.Generators += max(1, r.Generators)
		sum.Duration = max(sum.Duration, r.offset(sum.Start)+r.Duration)
		for _, e := range r.Events {
			e.At += r.offset(sum.Start)
			sum.Events = append(sum.Events, e)
		}
	}
	slices.SortStableFunc(sum.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	sum.Settings = mergeSettings(runs)
	sum.Environment = mergeEnvironments(runs)
	var err error
	for i := range first.Sides {
		parts := make([]part, len(runs))
		for j, r := range runs {
			parts[j] = part{r, &r.Sides[i], r.offset(sum.Start)}
		}
		side, e := mergeSides(parts)
		err = errors.Join(err, e)
		sum.Sides = append(sum.Sides, side)
	}
	err = errors.Join(err, sum.mergeCalibrations(runs))
	if err != nil {
		return nil, fmt.Errorf("report: merge: %w", err)
	}
	return sum, sum.mergeVerdicts(runs)
}

// offset is how many seconds after start the run began.
func (r *Run) offset(start time.Time) float64 { return r.Start.Sub(start).Seconds() }

// mergeable says why the runs are not parts of one.
func mergeable(runs []*Run) error {
	first := runs[0]
	for i, r := range runs {
		if err := r.check(); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		if r.Scenario != first.Scenario || r.Loop != first.Loop || len(r.Sides) != len(first.Sides) {
			return fmt.Errorf("run %d is %s, %s loop, %d targets, and run 1 is %s, %s loop, %d targets: only parts of the same run add up",
				i+1, r.Scenario, r.Loop, len(r.Sides), first.Scenario, first.Loop, len(first.Sides))
		}
		for s := range r.Sides {
			if r.Sides[s].Target != first.Sides[s].Target {
				return fmt.Errorf("run %d loads %s and run 1 loads %s: only runs against the same targets add up", i+1, r.Sides[s].Target, first.Sides[s].Target)
			}
			if len(r.Sides[s].Rounds) != len(first.Sides[s].Rounds) {
				return fmt.Errorf("run %d has %d rounds and run 1 has %d: give every generator the same --rounds", i+1, len(r.Sides[s].Rounds), len(first.Sides[s].Rounds))
			}
		}
		if gap := r.offset(first.Start); gap > first.Duration || -gap > r.Duration {
			return fmt.Errorf("run %d began %s after run 1 and did not overlap it: merge is for generators that ran together (is a clock wrong?), compare for runs one after another",
				i+1, formatSeconds(gap))
		}
	}
	return nil
}

// part is one run's side.
type part struct {
	run    *Run
	side   *Side
	offset float64
}

func mergeSides(parts []part) (Side, error) {
	first := parts[0].side
	sum := Side{Target: first.Target, Name: first.Name, Stages: map[string]Histogram{}}
	var errs []error
	for _, p := range parts {
		s := p.side
		sum.Counts.add(s.Counts)
		sum.Elapsed = max(sum.Elapsed, s.Elapsed)
		sum.Bytes += s.Bytes
		sum.PartitionErrors += s.PartitionErrors
		sum.CoordinatorErrors += s.CoordinatorErrors
		for name, h := range s.Stages {
			total := sum.Stages[name]
			if err := total.Add(h); err != nil {
				errs = append(errs, fmt.Errorf("%s, stage %s: %w", s.Label(), name, err))
			}
			sum.Stages[name] = total
		}
		sum.Failures = mergeFailures(sum.Failures, s.Failures)
		if s.CPU != nil && (sum.CPU == nil || s.CPU.Seconds > sum.CPU.Seconds) {
			cpu := *s.CPU // one process, seen by several generators
			sum.CPU = &cpu
		}
	}
	sum.Kernel = mergeKernel(parts, func(p part) map[string]uint64 { return p.side.Kernel })
	var err error
	sum.Windows, err = mergeWindows(parts)
	errs = append(errs, err)
	sum.Rounds, err = mergeRounds(parts)
	return sum, errors.Join(append(errs, err)...)
}

func mergeFailures(sum, more []Failure) []Failure {
	for _, f := range more {
		i := slices.IndexFunc(sum, func(g Failure) bool { return g.Class == f.Class })
		if i < 0 {
			f.Examples = slices.Clone(f.Examples)
			sum = append(sum, f)
			continue
		}
		sum[i].Count += f.Count
		sum[i].Idle += f.Idle
		for _, e := range f.Examples {
			if len(sum[i].Examples) < examplesKept && !slices.Contains(sum[i].Examples, e) {
				sum[i].Examples = append(sum[i].Examples, e)
			}
		}
	}
	return sum
}

// mergeKernel adds up counters over machines. Generators on one machine read the same counters, so that the highest
// counts once.
func mergeKernel(parts []part, of func(part) map[string]uint64) map[string]uint64 {
	byHost := map[string]map[string]uint64{}
	for _, p := range parts {
		host := p.run.Environment.Host
		if byHost[host] == nil {
			byHost[host] = map[string]uint64{}
		}
		for name, n := range of(p) {
			byHost[host][name] = max(byHost[host][name], n)
		}
	}
	sum := map[string]uint64{}
	for _, counters := range byHost {
		for name, n := range counters {
			sum[name] += n
		}
	}
	if len(sum) == 0 {
		return nil
	}
	return sum
}

// mergeWindows puts windows together whose middles fall into the same step of wall time.
func mergeWindows(parts []part) ([]Window, error) {
	var lengths []float64
	for _, p := range parts {
		for _, w := range p.side.Windows {
			lengths = append(lengths, w.Seconds)
		}
	}
	if len(lengths) == 0 {
		return nil, nil
	}
	slices.Sort(lengths)
	step := lengths[len(lengths)/2]
	cells := map[int][]part{} // each part with the one window that falls into the cell
	for _, p := range parts {
		for _, w := range p.side.Windows {
			w.At += p.offset
			cell := int(math.Floor((w.At + w.Seconds/2) / step))
			cells[cell] = append(cells[cell], part{p.run, &Side{Windows: []Window{w}, Kernel: w.Kernel}, 0})
		}
	}
	var sum []Window
	for _, cell := range slices.Sorted(maps.Keys(cells)) {
		w, err := mergeCell(cells[cell])
		if err != nil {
			return nil, err
		}
		w.At = float64(cell) * step
		sum = append(sum, w)
	}
	return sum, nil
}

func mergeCell(parts []part) (Window, error) {
	sum := parts[0].side.Windows[0]
	sum.Counts, sum.Classes, sum.Open, sum.Latency = Counts{}, nil, 0, Histogram{}
	long := map[*Run]float64{}
	for _, p := range parts {
		w := p.side.Windows[0]
		long[p.run] += w.Seconds
		sum.Seconds = max(sum.Seconds, long[p.run])
		sum.Counts.add(w.Counts)
		sum.Open += w.Open
		sum.CPU = max(sum.CPU, w.CPU)
		for class, n := range w.Classes {
			if sum.Classes == nil {
				sum.Classes = map[string]uint64{}
			}
			sum.Classes[class] += n
		}
		if err := sum.Latency.Add(w.Latency); err != nil {
			return sum, fmt.Errorf("window at %s: %w", formatSeconds(w.At), err)
		}
	}
	sum.Kernel = mergeKernel(parts, func(p part) map[string]uint64 { return p.side.Kernel })
	return sum, nil
}

func mergeRounds(parts []part) ([]Round, error) {
	var sum []Round
	for i := range parts[0].side.Rounds {
		r := Round{At: math.Inf(1)}
		for _, p := range parts {
			other := p.side.Rounds[i]
			r.At = min(r.At, other.At+p.offset)
			r.Seconds = max(r.Seconds, other.Seconds)
			r.CPU = max(r.CPU, other.CPU)
			r.Counts.add(other.Counts)
			if err := r.Latency.Add(other.Latency); err != nil {
				return nil, fmt.Errorf("round %d: %w", i+1, err)
			}
		}
		sum = append(sum, r)
	}
	return sum, nil
}

// mergeSettings joins values that differ.
func mergeSettings(runs []*Run) []Setting {
	var sum []Setting
	values := map[string][]string{}
	for _, r := range runs {
		for _, s := range r.Settings {
			if _, known := values[s.Name]; !known {
				sum = append(sum, Setting{Name: s.Name})
			}
			if !slices.Contains(values[s.Name], s.Value) {
				values[s.Name] = append(values[s.Name], s.Value)
			}
		}
	}
	for i := range sum {
		sum[i].Value = strings.Join(values[sum[i].Name], " | ")
	}
	return sum
}

func mergeEnvironments(runs []*Run) Environment {
	sum := runs[0].Environment
	sum.Warnings = nil
	var hosts, kernels, versions []string
	for _, r := range runs {
		e := r.Environment
		hosts, kernels, versions = append(hosts, e.Host), append(kernels, e.Kernel), append(versions, e.Version)
		for _, w := range e.Warnings {
			if !slices.Contains(sum.Warnings, w) {
				sum.Warnings = append(sum.Warnings, w)
			}
		}
	}
	sum.Host, sum.Kernel, sum.Version = joinUnique(hosts), joinUnique(kernels), joinUnique(versions)
	return sum
}

func joinUnique(values []string) string {
	slices.Sort(values)
	return strings.Join(slices.Compact(values), " | ")
}

func (r *Run) mergeCalibrations(runs []*Run) error {
	parts := make([]part, 0, len(runs))
	for _, run := range runs {
		if run.Calibration != nil {
			parts = append(parts, part{run, run.Calibration, 0})
		}
	}
	switch {
	case len(parts) == 0:
		return nil
	case len(parts) < len(runs):
		r.Environment.Warnings = append(r.Environment.Warnings,
			fmt.Sprintf("calibration left out: %d of %d generators have none", len(runs)-len(parts), len(runs)))
		return nil
	}
	sum, err := mergeSides(parts)
	if err != nil {
		return fmt.Errorf("calibration: %w", err)
	}
	r.Calibration = &sum
	return nil
}

func (r *Run) mergeVerdicts(runs []*Run) error {
	var texts []string
	for i, run := range runs {
		for _, why := range run.Verdict.Void {
			if len(runs) > 1 {
				why = fmt.Sprintf("generator %d: %s", i+1, why)
			}
			r.Verdict.Void = append(r.Verdict.Void, why)
		}
		for _, t := range run.Verdict.texts() {
			if !slices.Contains(texts, t) {
				texts = append(texts, t)
			}
		}
	}
	all, err := ParseAssertions(strings.Join(texts, ","))
	if err != nil {
		return fmt.Errorf("report: merge: a part's own %w", err)
	}
	all.Evaluate(r)
	return nil
}
