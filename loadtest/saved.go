package loadtest

import (
	"context"
	"errors"
	"io"

	"github.com/kvip/kvip/loadtest/report"
)

// Merge is `kvip loadtest merge`: adds up what several generators, on several machines, found at the same time.
type Merge struct {
	Files  []string `arg:"" help:"Results, as --json wrote them." type:"existingfile"`
	Assert string   `help:"What must hold for all of them together; their own conditions are held to the sum in any case." placeholder:"CONDITIONS"`
	JSON   string   `name:"json" help:"File for the merged result." type:"path"`
	HTML   string   `name:"html" help:"File for the report as a page." type:"path"`
	HGRM   string   `name:"hgrm" help:"File for the latency's percentile distribution." type:"path"`
}

// Run prints the sum.
func (m *Merge) Run(_ context.Context, stdout, _ io.Writer) error {
	asserts, err := report.ParseAssertions(m.Assert)
	if err != nil {
		return Usage{err}
	}
	var runs []*report.Run
	for _, path := range m.Files {
		r, err := report.ReadFile(path)
		if err != nil {
			return err
		}
		runs = append(runs, r)
	}
	run, err := report.Merge(runs)
	if err != nil {
		return err
	}
	asserts.Evaluate(run)
	if err := run.WriteText(stdout); err != nil {
		return err
	}
	out := Drive{JSON: m.JSON, HTML: m.HTML, HGRM: m.HGRM}
	return errors.Join(out.write(run), judge(run, len(run.Verdict.Assertions) > 0))
}

// Compare is `kvip loadtest compare`: two saved results side by side.
type Compare struct {
	First  string `arg:"" help:"A result, as --json wrote it." type:"existingfile"`
	Second string `arg:"" help:"Another one." type:"existingfile"`
	HTML   string `name:"html" help:"File for the comparison as a page." type:"path"`
}

// Run prints the comparison.
func (c *Compare) Run(_ context.Context, stdout, _ io.Writer) error {
	first, err := report.ReadFile(c.First)
	if err != nil {
		return err
	}
	second, err := report.ReadFile(c.Second)
	if err != nil {
		return err
	}
	both, err := report.Compare(first, second)
	if err != nil {
		return err
	}
	if err := both.WriteText(stdout); err != nil {
		return err
	}
	if c.HTML == "" {
		return nil
	}
	return report.WriteFile(c.HTML, both.WriteHTML)
}
