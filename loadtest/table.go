package loadtest

import (
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

func printResult(w io.Writer, c *Command, r *record.Result) {
	fmt.Fprintf(w, "%s on %s: %d clients, %d loops, %s, closed loop\n", c.Scenario, c.Target, c.Clients, c.Loops, r.Elapsed.Round(time.Millisecond))
	fmt.Fprintf(w, "%d answered (%.0f/s, %.1f MB/s), %d failed by the target, %d by this machine\n", r.Answered, r.Rate(),
		float64(r.Bytes)/1e6/r.Elapsed.Seconds(), r.TargetFailures(), r.LocalFailures())
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.AppendHeader(table.Row{"stage", "count", "p50", "p90", "p99", "p99.9", "max"})
	for stage, h := range r.Stages {
		if h.TotalCount() == 0 {
			continue
		}
		row := table.Row{record.Stage(stage), h.TotalCount()}
		for _, p := range []float64{50, 90, 99, 99.9} {
			row = append(row, time.Duration(h.ValueAtPercentile(p)).Round(time.Microsecond))
		}
		t.AppendRow(append(row, time.Duration(h.Max()).Round(time.Microsecond)))
	}
	t.Render()
	for class, n := range r.Failed {
		if n == 0 {
			continue
		}
		fmt.Fprintf(w, "%s: %d\n", failure.Class(class), n)
		for _, detail := range r.Details[failure.Class(class)] {
			fmt.Fprintf(w, "  %s\n", detail)
		}
	}
}
