package report

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// percentiles are those that tables show.
var percentiles = []float64{50, 90, 99, 99.9}

// WriteText writes the run as tables for a terminal.
func (r *Run) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%s\n", r.heading(), r.subheading())
	for i := range r.Sides {
		r.writeSide(&b, &r.Sides[i])
	}
	if r.Calibration != nil {
		fmt.Fprintf(&b, "\ncalibration: the same load on a server that does nothing, %s\n", r.Calibration.Target)
		writeStages(&b, r.Calibration)
	}
	if len(r.Sides) == 2 {
		fmt.Fprintf(&b, "\n%s to %s\n", r.Sides[0].Label(), r.Sides[1].Label())
		writeRatios(&b, Ratios(&r.Sides[0], &r.Sides[1]))
	}
	for i, e := range r.Events {
		fmt.Fprintf(&b, "%s%6.1fs  %s%s\n", first(i, "\nevents\n"), e.At, e.Name, prefixed(" FAILED: ", e.Error))
	}
	for _, warning := range r.Environment.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", warning)
	}
	for i, a := range r.Verdict.Assertions {
		fmt.Fprintf(&b, "%s%s  %s on %s: %s\n", first(i, "\nassertions\n"), a.word(), a.Text, a.Target, a.Found)
	}
	for i, why := range r.Verdict.Void {
		fmt.Fprintf(&b, "%s  %s\n", first(i, "\nVOID: these figures say nothing about the target\n"), why)
	}
	_, err := b.WriteTo(w)
	return err
}

func (r *Run) writeSide(b *bytes.Buffer, s *Side) {
	fmt.Fprintf(b, "\n%s: %s done, %s, %s/s of answers\n", s.Label(), formatNumber(float64(s.Done)), rate.format(s.Rate()), formatBytes(perSecond(s.Bytes, s.Elapsed)))
	fmt.Fprintf(b, "%s intended, %s started, %s failed by the target, %s by this machine\n", formatNumber(float64(s.Intended)),
		formatNumber(float64(s.Started)), formatNumber(float64(s.Failed)), formatNumber(float64(s.Local)))
	if d, ok := s.CPUPerOperation(); ok {
		fmt.Fprintf(b, "processor time of pid %d: %s per operation, %.2f cores\n", s.CPU.PID, formatDuration(d), s.CPU.Seconds/s.Elapsed)
	}
	if s.CoordinatorErrors > 0 {
		fmt.Fprintf(b, "%s answers named no coordinator yet\n", formatNumber(float64(s.CoordinatorErrors)))
	}
	if s.PartitionErrors > 0 {
		fmt.Fprintf(b, "%s answers named a partition with an error\n", formatNumber(float64(s.PartitionErrors)))
	}
	writeStages(b, s)
	if len(s.Failures) > 0 {
		t := newTable("failure", "operations", "idle connections", "for example")
		for _, f := range s.Failures {
			example := ""
			if len(f.Examples) > 0 {
				example = shorten(f.Examples[0], 90)
			}
			t.AppendRow(table.Row{f.Class, formatNumber(float64(f.Count)), formatNumber(float64(f.Idle)), example})
		}
		fmt.Fprintln(b, t.Render())
	}
	var grown []string
	for _, name := range slices.Sorted(maps.Keys(s.Kernel)) {
		if s.Kernel[name] > 0 {
			grown = append(grown, fmt.Sprintf("%s %d", name, s.Kernel[name]))
		}
	}
	if len(grown) > 0 {
		fmt.Fprintf(b, "kernel: %s\n", strings.Join(grown, ", "))
	}
}

func writeStages(b *bytes.Buffer, s *Side) {
	t := newTable("stage", "count", "p50", "p90", "p99", "p99.9", "max")
	t.SetColumnConfigs(rightFrom(2, 7))
	for _, row := range s.stageRows() {
		t.AppendRow(row)
	}
	fmt.Fprintln(b, t.Render())
}

// stageRows are the rows of the table of stages: name, count, percentiles, max.
func (s *Side) stageRows() []table.Row {
	var rows []table.Row
	for _, name := range s.StageNames() {
		h := s.Stages[name]
		row := table.Row{name, formatNumber(float64(h.Count()))}
		for _, p := range percentiles {
			row = append(row, formatDuration(h.At(p)))
		}
		rows = append(rows, append(row, formatDuration(h.Highest())))
	}
	return rows
}

func writeRatios(b *bytes.Buffer, ratios []Ratio) {
	t := newTable("figure", "first", "second", "ratio", "range")
	t.SetColumnConfigs(rightFrom(2, 5))
	for _, q := range ratios {
		t.AppendRow(table.Row{q.Figure, q.A, q.B, times.format(q.Ratio), q.span()})
	}
	fmt.Fprintln(b, t.Render())
}

// span is the range, for people.
func (q Ratio) span() string {
	if q.Rounds == 0 {
		return "one measurement"
	}
	return fmt.Sprintf("%s to %s in %d rounds", times.format(q.Low), times.format(q.High), q.Rounds)
}

// WriteText writes the comparison as tables for a terminal.
func (c *Comparison) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "first:  %s\nsecond: %s\n", c.A.heading(), c.B.heading())
	writeRatios(&b, c.Ratios)
	if len(c.Differences) > 0 {
		t := newTable("not the same", "first", "second")
		for _, d := range c.Differences {
			t.AppendRow(table.Row{d.Name, d.A, d.B})
		}
		fmt.Fprintln(&b, t.Render())
	}
	for _, warning := range c.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", warning)
	}
	_, err := b.WriteTo(w)
	return err
}

func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	return t
}

func rightFrom(from, to int) []table.ColumnConfig {
	var all []table.ColumnConfig
	for i := from; i <= to; i++ {
		all = append(all, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	return all
}

// heading says what was run against what.
func (r *Run) heading() string {
	if r.Title != "" {
		return r.Title
	}
	s := r.Scenario + " on " + r.Sides[0].Label()
	if len(r.Sides) == 2 {
		s += " and " + r.Sides[1].Label()
	}
	return s
}

// subheading says how.
func (r *Run) subheading() string {
	parts := []string{r.Loop + " loop" + prefixed(", ", r.Arrival), formatNumber(float64(r.Clients)) + " clients"}
	if r.Generators > 1 {
		parts = append(parts, fmt.Sprintf("%d generators", r.Generators))
	}
	parts = append(parts, formatSeconds(r.Duration)+prefixed(", CUT SHORT: ", r.Cut))
	if !r.Start.IsZero() {
		parts = append(parts, r.Start.UTC().Format(timeForm))
	}
	return strings.Join(parts, " · ")
}

func (a Assertion) word() string {
	if a.Holds {
		return "holds "
	}
	return "BROKEN"
}

func first(i int, s string) string {
	if i == 0 {
		return s
	}
	return ""
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
