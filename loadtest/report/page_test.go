package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
)

func pageOf(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestThePageShowsTheWholeRunAndAsksForNothing(t *testing.T) {
	r := sample("kvip", 1)
	r.Verdict.Void = []string{"lag p99 is above 20% of p99"}
	html := pageOf(t, r.WriteHTML)
	for _, want := range []string{"storm on kvip", "VOID", "lag p99 is above", "Latency over time", "Latency by percentile", "Operations per second",
		"Failures by class", "Drops and retransmissions in the kernel", "processor time per operation", "null server p99", "kill broker 2", "reassign all partitions",
		"failed: exit status 1", "p99&lt;5ms", "ip_local_port_range", "connection reset by peer", "TCPSynRetrans", "poisson:2000/s"} {
		if !strings.Contains(html, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "ZgotmplZ", "<script", "http://", "https://", "url(", "src="} {
		if strings.Contains(html, bad) {
			t.Errorf("%q is in the page", bad)
		}
	}
	if n := len(html); n > 1_000_000 {
		t.Errorf("%d bytes", n)
	}
	wellFormed(t, html)
}

// wellFormed reads every SVG of the page as XML.
func wellFormed(t *testing.T, html string) {
	t.Helper()
	all := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(html, -1)
	if len(all) < 2 {
		t.Errorf("%d charts", len(all))
	}
	for _, svg := range all {
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in %.200s", err, svg)
			}
		}
	}
}

func TestATargetCannotWriteIntoThePage(t *testing.T) {
	r := made(1, 2)
	const evil = `"><script>alert(1)</script>&<`
	s := &r.Sides[0]
	s.Name, s.Failures[0].Examples, s.Failures[0].Class = evil, []string{evil}, evil
	s.Windows[0].Classes = map[string]uint64{evil: 1}
	s.Windows[0].Kernel = map[string]uint64{evil: 1}
	r.Title, r.Arrival, r.Settings, r.Events = evil, evil, []Setting{{evil, evil}}, []Event{{At: 1, Name: evil, Detail: evil, Error: evil}}
	html := pageOf(t, r.WriteHTML)
	if strings.Contains(html, "<script") {
		t.Error("it can")
	}
	wellFormed(t, html)
}

func TestOddRunsStillMakeAPage(t *testing.T) {
	for name, run := range map[string]*Run{
		"nothing":       {Schema: Schema, Sides: []Side{{Target: "t"}}},
		"all failed":    {Schema: Schema, Duration: 1, Sides: []Side{{Target: "t", Counts: Counts{Failed: 3}, Windows: []Window{{Seconds: 1, Classes: map[string]uint64{"refused": 3}}}}}},
		"one operation": {Schema: Schema, Duration: 1, Sides: []Side{{Stages: map[string]Histogram{StageOperation: histogramOf(RunDigits, 0)}, Windows: []Window{{Seconds: 0.1, Latency: histogramOf(2, 0)}}}}},
		"an hour":       made(1, 3600),
		"a late event":  {Schema: Schema, Duration: 1, Events: []Event{{At: -5, Name: "before"}, {At: 99, Name: "after"}, {At: 99, Name: "after"}, {At: 99, Name: "x"}, {At: 99}, {At: 99}, {At: 99}}, Sides: made(1, 2).Sides},
	} {
		html := pageOf(t, run.WriteHTML)
		if strings.Contains(html, "NaN") || strings.Contains(html, "Inf") || len(html) > 1_500_000 {
			t.Errorf("%s: %d bytes, or a figure that is none", name, len(html))
		}
	}
	if err := (&Run{}).WriteHTML(io.Discard); err == nil {
		t.Error("a run without a target made a page")
	}
}

func TestTwoTargetsAreDrawnTogetherAndTwoRunsToo(t *testing.T) {
	a, b := sample("kvip", 1), sample("haproxy", 1.4)
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	compared := pageOf(t, c.WriteHTML)
	for _, want := range []string{"first: kvip", "second: haproxy", "not interleaved", "one measurement", "second: kill broker 2"} {
		if !strings.Contains(compared, want) {
			t.Errorf("%q is missing in the comparison", want)
		}
	}
	a.Sides = append(a.Sides, b.Sides...)
	html := pageOf(t, a.WriteHTML)
	for _, want := range []string{"Latency over time · kvip", "Latency over time · haproxy", "First to second", "done by haproxy"} {
		if !strings.Contains(html, want) {
			t.Errorf("%q is missing", want)
		}
	}
	wellFormed(t, html)
	wellFormed(t, compared)
}
