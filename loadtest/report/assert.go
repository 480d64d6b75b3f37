package report

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Assertions are conditions on a run: `p99<5ms,failed=0,rate>=1000,lag_p99<0.5ms`.
type Assertions []condition

type condition struct {
	text   string
	figure figure
	ratio  bool // of the first side to the second
	op     string
	value  float64
}

// operators, longer ones first.
var operators = []struct {
	text  string
	holds func(a, b float64) bool
}{
	{"<=", func(a, b float64) bool { return a <= b }},
	{">=", func(a, b float64) bool { return a >= b }},
	{"!=", func(a, b float64) bool { return a != b }},
	{"==", func(a, b float64) bool { return a == b }},
	{"<", func(a, b float64) bool { return a < b }},
	{">", func(a, b float64) bool { return a > b }},
	{"=", func(a, b float64) bool { return a == b }},
}

// ratioSuffix on a figure's name is that figure of the first target divided by the second's (--vs).
const ratioSuffix = "_ratio"

// ParseAssertions reads conditions, with commas between them: a figure, one of < <= > >= = !=, and a value. Figures are
// percentiles of the latency (p99.9), max, mean, the same of a stage (lag_p99), rate, done, failed, failed_share (in %),
// failed_CLASS, cpu_per_op and others, the kernel's counters (ListenOverflows), and with --vs any of them with _ratio
// behind. The error names every condition that is wrong, and how to write it.
func ParseAssertions(text string) (Assertions, error) {
	var all Assertions
	var faults []error
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	for i, part := range strings.Split(text, ",") {
		c, err := parseCondition(strings.TrimSpace(part))
		if err != nil {
			faults = append(faults, fmt.Errorf("assertion %d, %q: %w", i+1, strings.TrimSpace(part), err))
			continue
		}
		all = append(all, c)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return all, nil
}

func parseCondition(text string) (condition, error) {
	if text == "" {
		return condition{}, errors.New("is empty: write conditions such as p99<5ms with one comma between them")
	}
	at := strings.IndexAny(text, "<>=!")
	if at < 0 {
		return condition{}, errors.New("has no comparison: write one of < <= > >= = !=, as in p99<5ms")
	}
	c := condition{text: text}
	for _, op := range operators {
		if strings.HasPrefix(text[at:], op.text) {
			c.op = op.text
			break
		}
	}
	if c.op == "" {
		return c, fmt.Errorf("%q is no comparison: write one of < <= > >= = !=", text[at:at+1])
	}
	name, value := strings.TrimSpace(text[:at]), strings.TrimSpace(text[at+len(c.op):])
	base, ratio := strings.CutSuffix(name, ratioSuffix)
	f, ok := figureOf(base)
	if !ok {
		return c, fmt.Errorf("no figure is called %q: known are %s, and any of them with %s of the first target to the second", name, figureNames(), ratioSuffix)
	}
	c.figure, c.ratio = f, ratio
	if ratio {
		c.figure.unit = times
	}
	var err error
	c.value, err = c.figure.unit.parse(value)
	if err != nil {
		return c, fmt.Errorf("%s %w", name, err)
	}
	return c, nil
}

func (u unit) parse(value string) (float64, error) {
	if u == nanos {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			hint := "5ms"
			if _, err := strconv.ParseFloat(value, 64); err == nil {
				hint = value + "ms"
			}
			return 0, fmt.Errorf("is a duration, and %q is none: write it with its unit, such as %s", value, hint)
		}
		return float64(d), nil
	}
	if u == percent {
		value = strings.TrimSuffix(value, "%")
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || v < 0 || v != v {
		return 0, fmt.Errorf("is a number, and %q is none: write digits alone, such as 1000", value)
	}
	return v, nil
}

// Evaluate holds the conditions against the run's first side, adds the result to the run's verdict and says whether all
// hold. What was not measured does not hold. The second side, often what the first is to replace, is only compared with.
func (all Assertions) Evaluate(r *Run) bool {
	good := true
	for _, c := range all {
		a := c.evaluate(r)
		good = good && a.Holds
		r.Verdict.Assertions = append(r.Verdict.Assertions, a)
	}
	return good
}

func (c condition) evaluate(r *Run) Assertion {
	first := &r.Sides[0]
	a := Assertion{Text: c.text, Target: first.Label(), Found: "not measured"}
	v, ok := c.figure.of(first)
	if c.ratio {
		if len(r.Sides) < 2 {
			a.Found = "not measured: there is no second target (--vs)"
			return a
		}
		a.Target += " to " + r.Sides[1].Label()
		q, measured := ratioOf(c.figure, first, &r.Sides[1])
		v, ok = q.Ratio, measured
	}
	if !ok {
		return a
	}
	for _, op := range operators {
		if op.text == c.op {
			a.Holds = op.holds(v, c.value)
		}
	}
	a.Found = c.figure.unit.format(v)
	return a
}

// texts are the conditions as they were written.
func (v Verdict) texts() []string {
	var out []string
	for _, a := range v.Assertions {
		out = append(out, a.Text)
	}
	return out
}
