package report

import (
	"fmt"
	"math"
	"slices"
)

// Ratio is one figure of two targets. Where both were measured in interleaved rounds, Ratio is the median of the rounds'
// ratios and Low and High their range; otherwise all three are the ratio of the two figures.
type Ratio struct {
	Figure string
	A, B   string // the figures, for people
	Ratio  float64
	Low    float64
	High   float64
	Rounds int // 0: there was nothing to take a range from
	Better int // 1: more is better; -1: less is
}

// compared are the figures that comparisons show, and whether more of it is better.
var compared = []struct {
	name   string
	better int
}{
	{"rate", 1}, {"p50", -1}, {"p90", -1}, {"p99", -1}, {"p99.9", -1}, {"max", -1}, {"cpu_per_op", -1}, {"failed", -1},
}

// Ratios compares two sides, a to b: figures above 1 say that a has more. A figure that either lacks, or that is zero in b, is left out.
func Ratios(a, b *Side) []Ratio {
	var all []Ratio
	for _, c := range compared {
		f, _ := figureOf(c.name)
		if q, ok := ratioOf(f, a, b); ok {
			q.Better = c.better
			all = append(all, q)
		}
	}
	return all
}

func ratioOf(f figure, a, b *Side) (Ratio, bool) {
	va, okA := f.of(a)
	vb, okB := f.of(b)
	if !okA || !okB || vb == 0 {
		return Ratio{}, false
	}
	q := Ratio{Figure: f.name, A: f.unit.format(va), B: f.unit.format(vb), Ratio: va / vb}
	q.Low, q.High = q.Ratio, q.Ratio
	var each []float64
	for i := range min(len(a.Rounds), len(b.Rounds)) {
		va, okA := f.of(a.Rounds[i].side())
		vb, okB := f.of(b.Rounds[i].side())
		if okA && okB && vb != 0 {
			each = append(each, va/vb)
		}
	}
	if len(each) > 0 {
		slices.Sort(each)
		q.Ratio, q.Low, q.High, q.Rounds = median(each), each[0], each[len(each)-1], len(each)
	}
	return q, true
}

// side is the round as figures take it.
func (r Round) side() *Side {
	s := &Side{Elapsed: r.Seconds, Counts: r.Counts, Stages: map[string]Histogram{StageOperation: r.Latency}}
	if r.CPU > 0 {
		s.CPU = &CPU{Seconds: r.CPU}
	}
	return s
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Comparison is two saved runs side by side: the first side of each.
type Comparison struct {
	A, B        *Run
	Ratios      []Ratio
	Differences []Difference // settings and surroundings that are not the same
	Warnings    []string     // why the ratios may mislead
}

// Difference is a setting that the two runs do not share.
type Difference struct{ Name, A, B string }

// Compare puts two saved runs side by side. It refuses runs of different scenarios or loops, whose figures have nothing in common.
func Compare(a, b *Run) (*Comparison, error) {
	if a.Scenario != b.Scenario || a.Loop != b.Loop {
		return nil, fmt.Errorf("one run is %s with %s loop, the other %s with %s loop: only runs of the same scenario and loop compare", a.Scenario, a.Loop, b.Scenario, b.Loop)
	}
	c := &Comparison{A: a, B: b, Ratios: Ratios(&a.Sides[0], &b.Sides[0])}
	c.Differences = differences(a, b)
	c.Warnings = append(c.Warnings, "the two runs were not interleaved: processor time per operation compares, rates and latencies only on a machine with nothing else to do (--vs interleaves)")
	for _, r := range []*Run{a, b} {
		if r.Cut != "" {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the run of %s was cut short: %s", r.Sides[0].Label(), r.Cut))
		}
		if len(r.Verdict.Void) > 0 {
			c.Warnings = append(c.Warnings, fmt.Sprintf("the run of %s is void: %s", r.Sides[0].Label(), r.Verdict.Void[0]))
		}
	}
	if ra, rb := a.Sides[0].intendedRate(), b.Sides[0].intendedRate(); a.Loop == LoopOpen && math.Abs(ra-rb) > 0.02*max(ra, rb) {
		c.Warnings = append(c.Warnings, fmt.Sprintf("the schedules differ: %s/s and %s/s", formatNumber(ra), formatNumber(rb)))
	}
	return c, nil
}

func (s *Side) intendedRate() float64 { return perSecond(s.Intended, s.Elapsed) }

func differences(a, b *Run) []Difference {
	var all []Difference
	differ := func(name, va, vb string) {
		if va != vb {
			all = append(all, Difference{name, va, vb})
		}
	}
	differ("target", a.Sides[0].Target, b.Sides[0].Target)
	differ("start", a.Start.UTC().Format(timeForm), b.Start.UTC().Format(timeForm))
	differ("arrival", a.Arrival, b.Arrival)
	differ("clients", formatNumber(float64(a.Clients)), formatNumber(float64(b.Clients)))
	differ("generators", formatNumber(float64(a.Generators)), formatNumber(float64(b.Generators)))
	differ("host", a.Environment.Host, b.Environment.Host)
	differ("kernel", a.Environment.Kernel, b.Environment.Kernel)
	differ("cpus", fmt.Sprint(a.Environment.CPUs), fmt.Sprint(b.Environment.CPUs))
	differ("version", a.Environment.Version, b.Environment.Version)
	values := func(settings []Setting) map[string]string {
		m := map[string]string{}
		for _, s := range settings {
			m[s.Name] = s.Value
		}
		return m
	}
	va, vb := values(a.Settings), values(b.Settings)
	for _, s := range a.Settings {
		differ(s.Name, s.Value, vb[s.Name])
	}
	for _, s := range b.Settings {
		if _, ok := va[s.Name]; !ok {
			differ(s.Name, "", s.Value)
		}
	}
	// target, arrival, clients may be among the settings, too.
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(d Difference) bool { again := seen[d.Name]; seen[d.Name] = true; return again })
}

// timeForm is how reports write the time of day.
const timeForm = "2006-01-02 15:04:05 UTC"
