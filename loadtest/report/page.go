package report

import (
	_ "embed" // the page's template and style sheet
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

//go:embed page.css
var styleText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is what the template shows.
type page struct {
	Style       template.CSS
	Title       string
	Subtitle    string
	State       string // void, broken, good or plain
	StateText   string
	Void        []string
	Warnings    []string
	Cards       []cardRow
	Charts      []figureChart
	Notes       []string
	Events      []eventRow
	Assertions  []Assertion
	Ratios      []ratioRow
	Compared    []string // what the ratios' columns are called
	Differences []Difference
	Stages      []stageTable
	Failures    []failureTable
	Kernel      []counterRow
	KernelOf    []string
	Settings    []Setting
	Environment []Setting
}

type cardRow struct {
	Class string
	Name  string // empty with one side
	Cards []card
}

type card struct{ Name, Value, Class string }

type eventRow struct {
	Number int
	At     string
	Event
}

type ratioRow struct {
	Ratio
	Value, Span, Class string
}

type stageTable struct {
	Name string
	Rows [][]any
}

type failureTable struct {
	Name string
	Rows []failureRow
}

type failureRow struct {
	Failure
	Operations, Idled string
}

type counterRow struct {
	Name   string
	Values []string
}

// WriteHTML writes the report as one page that needs nothing beside itself: no script, no font, no picture, no network.
func (r *Run) WriteHTML(w io.Writer) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	p := r.page()
	p.verdict(r.Verdict)
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// WriteHTML writes the comparison as one page of the same kind, with both runs in its charts.
func (c *Comparison) WriteHTML(w io.Writer) error {
	a, b := c.A.Sides[0], c.B.Sides[0]
	a.Name, b.Name = "first: "+a.Label(), "second: "+b.Label()
	both := *c.A
	both.Title = c.A.heading() + ", compared"
	both.Sides, both.Calibration, both.Events = []Side{a, b}, nil, nil
	both.Duration = max(c.A.Duration, c.B.Duration)
	for i, r := range []*Run{c.A, c.B} {
		for _, e := range r.Events {
			e.Name = []string{"first: ", "second: "}[i] + e.Name
			both.Events = append(both.Events, e)
		}
	}
	if err := both.check(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	p := both.page()
	p.Subtitle = c.A.subheading() + " and " + c.B.subheading()
	p.Differences = c.Differences
	p.Warnings = append(p.Warnings, c.Warnings...)
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (p *page) verdict(v Verdict) {
	broken := 0
	for _, a := range v.Assertions {
		if !a.Holds {
			broken++
		}
	}
	p.Void, p.Assertions = v.Void, v.Assertions
	switch {
	case len(v.Void) > 0:
		p.State, p.StateText = "void", "VOID"
	case broken > 0:
		p.State, p.StateText = "broken", fmt.Sprintf("%d of %d assertions broken", broken, len(v.Assertions))
	case len(v.Assertions) > 0:
		p.State, p.StateText = "good", fmt.Sprintf("all %d assertions hold", len(v.Assertions))
	}
}

func (r *Run) page() *page {
	p := &page{
		Style: template.CSS(styleText), Title: r.heading(), Subtitle: r.subheading(), State: "plain",
		Warnings: slices.Clone(r.Environment.Warnings), Settings: r.Settings,
	}
	two := len(r.Sides) == 2
	for i := range r.Sides {
		s := &r.Sides[i]
		row := cardRow{Class: sideClass(i), Cards: s.cards()}
		if two {
			row.Name = s.Label()
		}
		p.Cards = append(p.Cards, row)
		p.Stages = append(p.Stages, s.stageTable(row.Name))
		p.KernelOf = append(p.KernelOf, s.Label())
		if len(s.Failures) > 0 {
			p.Failures = append(p.Failures, s.failureTable(row.Name))
		}
	}
	if cal := r.Calibration; cal != nil {
		p.Stages = append(p.Stages, cal.stageTable("calibration: the same load on a server that does nothing"))
	}
	if two {
		p.Compared = []string{r.Sides[0].Label(), r.Sides[1].Label()}
		for _, q := range Ratios(&r.Sides[0], &r.Sides[1]) {
			p.Ratios = append(p.Ratios, ratioRow{q, times.format(q.Ratio), q.span(), q.class()})
		}
	}
	for i, e := range r.Events {
		p.Events = append(p.Events, eventRow{i + 1, formatEventTime(e.At), e})
	}
	p.Kernel = r.kernelRows()
	p.Environment = r.Environment.settings()
	r.drawCharts(p)
	return p
}

// drawCharts adds the charts that there is something for, and a note for those whose emptiness is good news.
func (r *Run) drawCharts(p *page) {
	c := r.charts()
	add := func(f figureChart, ok bool) bool {
		if ok {
			p.Charts = append(p.Charts, f)
		}
		return ok
	}
	for i := range r.Sides {
		add(c.latency(&r.Sides[i]))
	}
	add(c.percentileCurve())
	add(c.rate())
	for i := range r.Sides {
		s := &r.Sides[i]
		if !add(c.stacked("Failures by class", s, func(w Window) map[string]uint64 { return w.Classes }, "e")) && s.Failed+s.Local == 0 {
			p.Notes = append(p.Notes, "No operation failed"+c.of(s)+".")
		}
		if !add(c.stacked("Drops and retransmissions in the kernel", s, func(w Window) map[string]uint64 { return w.Kernel }, "k")) && len(s.Kernel) > 0 && s.kernelTotal() == 0 {
			p.Notes = append(p.Notes, "The kernel dropped nothing and sent nothing again"+c.of(s)+".")
		}
	}
	add(c.cpu())
}

func (c *charts) of(s *Side) string {
	if len(c.run.Sides) == 1 {
		return ""
	}
	return " on " + s.Label()
}

func (s *Side) kernelTotal() (n uint64) {
	for _, v := range s.Kernel {
		n += v
	}
	return n
}

func (s *Side) cards() []card {
	cards := []card{{"done", rate.format(s.Rate()), ""}}
	for _, p := range percentiles {
		if s.Latency().Count() > 0 {
			cards = append(cards, card{fmt.Sprintf("p%g", p), formatDuration(s.Latency().At(p)), ""})
		}
	}
	failed := card{Name: "failed", Value: formatNumber(float64(s.Failed))}
	if s.Failed > 0 {
		failed.Name, failed.Class = "failed, "+percent.format(100*share(s.Failed, s.Done+s.Failed)), "bad"
	}
	cards = append(cards, failed)
	if s.Local > 0 {
		cards = append(cards, card{"failed here", formatNumber(float64(s.Local)), "bad"})
	}
	if lag := s.Stages[StageLag]; lag.Count() > 0 {
		cards = append(cards, card{"lag p99", formatDuration(lag.At(99)), ""})
	}
	if d, ok := s.CPUPerOperation(); ok {
		cards = append(cards, card{"CPU / operation", formatDuration(d), ""})
	}
	return cards
}

func (s *Side) stageTable(name string) stageTable {
	t := stageTable{Name: name}
	for _, row := range s.stageRows() {
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (s *Side) failureTable(name string) failureTable {
	t := failureTable{Name: name}
	for _, f := range s.Failures {
		t.Rows = append(t.Rows, failureRow{f, formatNumber(float64(f.Count)), formatNumber(float64(f.Idle))})
	}
	return t
}

// class says which side a ratio speaks for, where its whole range does.
func (q Ratio) class() string {
	switch {
	case q.Low > 1 && q.Better > 0, q.High < 1 && q.Better < 0:
		return "better"
	case q.High < 1 && q.Better > 0, q.Low > 1 && q.Better < 0:
		return "worse"
	}
	return ""
}

func (r *Run) kernelRows() []counterRow {
	names := map[string]bool{}
	for i := range r.Sides {
		for name := range r.Sides[i].Kernel {
			names[name] = true
		}
	}
	var rows []counterRow
	for _, name := range slices.Sorted(maps.Keys(names)) {
		row := counterRow{Name: name}
		for i := range r.Sides {
			row.Values = append(row.Values, formatNumber(float64(r.Sides[i].Kernel[name])))
		}
		rows = append(rows, row)
	}
	return rows
}

// settings lists the surroundings that are known.
func (e Environment) settings() []Setting {
	cpus := ""
	if e.CPUs > 0 {
		cpus = fmt.Sprint(e.CPUs)
	}
	all := append([]Setting{{"host", e.Host}, {"kernel", e.Kernel}, {"processors", cpus}, {"Go", e.Go}, {"load test", e.Version}}, e.Limits...)
	return slices.DeleteFunc(all, func(s Setting) bool { return strings.TrimSpace(s.Value) == "" })
}
