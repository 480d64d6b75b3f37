package report

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// sameHistograms compares histograms by what they hold.
var sameHistograms = cmp.Options{
	cmp.Comparer(func(a, b Histogram) bool {
		if a.Count() == 0 || b.Count() == 0 {
			return a.Count() == b.Count()
		}
		return a.Equals(b.Histogram)
	}),
	cmpopts.EquateEmpty(),
}

func histogramOf(digits int, values ...time.Duration) Histogram {
	h := NewHistogram(digits)
	for _, v := range values {
		if err := h.RecordValue(int64(v)); err != nil {
			panic(err)
		}
	}
	return h
}

// made returns a run of n windows of a second against one target, different for each seed.
func made(seed uint64, n int) *Run {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := Side{Target: "127.0.0.1:9092", Elapsed: float64(n), Stages: map[string]Histogram{}, CPU: &CPU{PID: 7, Seconds: float64(n) * 0.4}, Kernel: map[string]uint64{"ListenOverflows": seed}}
	all := NewHistogram(RunDigits)
	for i := range n {
		w := Window{At: float64(i), Seconds: 1, CPU: 0.4, Latency: NewHistogram(WindowDigits), Open: 10}
		for range 200 {
			d := int64(rng.ExpFloat64() * float64(time.Millisecond))
			_ = w.Latency.RecordValue(d)
			_ = all.RecordValue(d)
		}
		w.Counts = Counts{Intended: 203, Started: 202, Done: 200, Failed: 2}
		w.Classes = map[string]uint64{"reset": 2}
		s.Counts.add(w.Counts)
		s.Windows = append(s.Windows, w)
	}
	s.Stages[StageOperation] = all
	s.Stages[StageLag] = histogramOf(RunDigits, 20*time.Microsecond, 40*time.Microsecond)
	s.Failures = []Failure{{Class: "reset", Count: s.Failed, Examples: []string{"read: connection reset by peer"}}}
	return &Run{
		Schema: Schema, Scenario: "storm", Loop: LoopOpen, Arrival: "poisson:203/s", Seed: seed,
		Start: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Duration: float64(n), Clients: 100, Generators: 1,
		Settings:    []Setting{{"clients", "100"}, {"seed", formatNumber(float64(seed))}},
		Environment: Environment{Host: "one", Kernel: "Linux 6.1", CPUs: 2},
		Sides:       []Side{s},
		Events:      []Event{{At: 1.5, Name: "kill broker 2", Detail: "kill -9 4711"}},
	}
}

func TestASavedRunReadsBackWhole(t *testing.T) {
	r := made(1, 3)
	path := filepath.Join(t.TempDir(), "run.json")
	if err := WriteFile(path, r.WriteJSON); err != nil {
		t.Fatal(err)
	}
	back, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, back, sameHistograms); d != "" {
		t.Error(d)
	}
}

func TestWhatIsNoReportIsRefusedWithTheReason(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "not a report",
		"[]":                         "not a report",
		"{}":                         "schema",
		`{"schema":99,"sides":[{}]}`: "use the release that wrote it",
		`{"schema":1}`:               "0 sides",
		`{"schema":1,"sides":[7]}`:   "sides",
		`{"schema":1,"sides":[{}],"calibration":{"windows":[{"t":0,"s":-1,"latency":{}}]}}`: "window 0",
		`{"schema":1,"sides":[{"stages":{"operation":{"count":3}}}]}`:                       `without "hdr"`,
		`{"schema":1,"sides":[{"stages":{"operation":{"count":3,"hdr":"HISTFAA"}}}]}`:       "histogram",
	} {
		_, err := ReadJSON(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
	if err := WriteFile(filepath.Join(t.TempDir(), "none", "x.json"), made(1, 1).WriteJSON); err == nil {
		t.Error("written into a directory that is not there")
	}
}

func TestMergedRunsHoldEveryOperationOfTheirParts(t *testing.T) {
	a, b := made(1, 5), made(2, 5)
	b.Start = b.Start.Add(2100 * time.Millisecond)
	b.Environment.Host = "two"
	sum, err := Merge([]*Run{a, b})
	if err != nil {
		t.Fatal(err)
	}
	s := sum.Sides[0]
	if want := (Counts{Intended: 2030, Started: 2020, Done: 2000, Failed: 20}); s.Counts != want {
		t.Errorf("counts %+v, want %+v", s.Counts, want)
	}
	both := histogramOf(RunDigits)
	both.Merge(a.Sides[0].Latency().Histogram)
	both.Merge(b.Sides[0].Latency().Histogram)
	if !s.Latency().Equals(both.Histogram) {
		t.Error("the sum of the histograms is not the sum")
	}
	if a.Sides[0].Latency().Count() != 1000 {
		t.Error("a part was changed")
	}
	var done []uint64
	var total Counts
	for _, w := range s.Windows {
		done = append(done, w.Done)
		total.add(w.Counts)
		if w.Latency.Count() != int64(w.Done) || w.Classes["reset"] != w.Failed {
			t.Errorf("window at %g: %d latencies of %d operations, %d resets of %d", w.At, w.Latency.Count(), w.Done, w.Classes["reset"], w.Failed)
		}
	}
	if want := []uint64{200, 200, 400, 400, 400, 200, 200}; !cmp.Equal(done, want) || total != s.Counts {
		t.Errorf("windows hold %v, want %v; in all %+v", done, want, total)
	}
	if s.Kernel["ListenOverflows"] != 3 || s.CPU.Seconds != 2 || sum.Clients != 200 || sum.Generators != 2 || sum.Settings[1].Value != "1 | 2" {
		t.Errorf("kernel %v, CPU %+v, %d clients, %d generators, settings %v", s.Kernel, s.CPU, sum.Clients, sum.Generators, sum.Settings)
	}
	if len(sum.Events) != 2 || sum.Events[1].At != 3.6 || s.Failures[0].Count != 20 {
		t.Errorf("events %+v, failures %+v", sum.Events, s.Failures)
	}
	var text bytes.Buffer
	if err := errors.Join(sum.WriteJSON(&text), sum.check()); err != nil {
		t.Error(err)
	}
}

func TestGeneratorsOfOneMachineCountItsKernelOnce(t *testing.T) {
	sum, err := Merge([]*Run{made(5, 2), made(9, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if n := sum.Sides[0].Kernel["ListenOverflows"]; n != 9 {
		t.Errorf("%d overflows, want the 9 that both saw", n)
	}
}

func TestPartsOfDifferentRunsDoNotMerge(t *testing.T) {
	for want, change := range map[string]func(*Run){
		"same targets": func(r *Run) { r.Sides[0].Target = "127.0.0.1:1" },
		"same run":     func(r *Run) { r.Scenario = "steady" },
		"not overlap":  func(r *Run) { r.Start = r.Start.Add(time.Minute) },
		"--rounds":     func(r *Run) { r.Sides[0].Rounds = []Round{{Seconds: 1}} },
		"without loss": func(r *Run) { r.Sides[0].Stages[StageOperation] = histogramOf(2, time.Second) },
		"schema 2":     func(r *Run) { r.Schema = 2 },
		"0 sides":      func(r *Run) { r.Sides = nil },
	} {
		b := made(2, 2)
		change(b)
		if _, err := Merge([]*Run{made(1, 2), b}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

func TestAMergedRunIsVoidWhenAPartIsAndAssertsAnew(t *testing.T) {
	a, b := made(1, 2), made(2, 2)
	b.Verdict.Void = []string{"lag"}
	all, err := ParseAssertions("done>=500")
	if err != nil {
		t.Fatal(err)
	}
	if all.Evaluate(a) {
		t.Error("400 operations hold done>=500")
	}
	sum, err := Merge([]*Run{a, b})
	if err != nil {
		t.Fatal(err)
	}
	if v := sum.Verdict; len(v.Void) != 1 || v.Void[0] != "generator 2: lag" || len(v.Assertions) != 1 || !v.Assertions[0].Holds || v.Good() {
		t.Errorf("%+v", v)
	}
	more, _ := ParseAssertions("done>=5000") // of the sum alone
	if more.Evaluate(sum) || len(sum.Verdict.Assertions) != 2 || sum.Verdict.Assertions[0].Text != "done>=500" {
		t.Errorf("with a condition more: %+v", sum.Verdict.Assertions)
	}
}

func TestAssertionsJudgeWhatTheyName(t *testing.T) {
	r := made(1, 1)
	s := &r.Sides[0]
	s.Stages[StageOperation] = histogramOf(RunDigits, time.Millisecond, 2*time.Millisecond, 3*time.Millisecond, 10*time.Millisecond)
	s.Counts = Counts{Intended: 5, Started: 5, Done: 4, Failed: 1}
	second := *s
	second.Elapsed *= 2
	for text, holds := range map[string]bool{
		"p50<3ms": true, "p50<1ms": false, "p99.9<=10.1ms": true, "max>9ms": true, "mean<5ms": true,
		"failed=1": true, "failed==0": false, "failed!=0": true, "failed_share<=20%": true, "failed_share<20": false,
		"rate>=4": true, "rate>4": false, "lag_p99<0.5ms": true, "failed_reset=2": true, "failed_local=0": true, "failed_local_ports=0": true,
		"ListenOverflows=1": true, "cpu_per_op<=100ms": true,
		"connect_p99<1h": false, "TCPAbort=0": false, // not measured
		"rate_ratio=2": true, "p99_ratio<=1": true,
	} {
		all, err := ParseAssertions(text)
		if err != nil {
			t.Error(err)
			continue
		}
		r.Sides, r.Verdict = []Side{*s, second}, Verdict{}
		if got := all.Evaluate(r); got != holds {
			t.Errorf("%s: %v, found %s", text, got, r.Verdict.Assertions[0].Found)
		}
	}
	all, _ := ParseAssertions("p99_ratio<2")
	r.Sides, r.Verdict = r.Sides[:1], Verdict{}
	if all.Evaluate(r) || !strings.Contains(r.Verdict.Assertions[0].Found, "--vs") {
		t.Errorf("a ratio of one target: %+v", r.Verdict.Assertions)
	}
}

func TestTheSecondTargetIsComparedWithAndNotJudged(t *testing.T) {
	r := made(1, 1)
	good := r.Sides[0]
	good.Failed = 0
	bad := good
	bad.Target, bad.Failed = "127.0.0.1:9093", 1
	all, _ := ParseAssertions("failed=0,rate_ratio=1")
	for holds, sides := range map[bool][]Side{true: {good, bad}, false: {bad, good}} {
		r.Sides, r.Verdict = sides, Verdict{}
		if got := all.Evaluate(r); got != holds || r.Verdict.Assertions[0].Target != sides[0].Target {
			t.Errorf("with %d failures of the first target and %d of the second: %+v", sides[0].Failed, sides[1].Failed, r.Verdict.Assertions)
		}
	}
}

func TestWrongAssertionsAreNamedTogetherWithTheFix(t *testing.T) {
	_, err := ParseAssertions("p99<5, failed, p999<1ms,rat>3,rate>fast,,p50!3ms,failed_resets=0,p1e1<1ms")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`assertion 1, "p99<5": p99 is a duration, and "5" is none: write it with its unit, such as 5ms`,
		`assertion 2, "failed": has no comparison`, `assertion 3, "p999<1ms": no figure`, `assertion 4, "rat>3": no figure is called "rat": known are p50`,
		`assertion 5, "rate>fast": rate is a number`, `assertion 6, "": is empty`, `assertion 7, "p50!3ms": "!" is no comparison`,
		`assertion 8, "failed_resets=0": no figure`, `assertion 9, "p1e1<1ms": no figure`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error:\n%v", want, err)
		}
	}
}

func TestRatiosComeFromTheRoundsWithTheirRange(t *testing.T) {
	round := func(done uint64) Round { return Round{Seconds: 1, Counts: Counts{Done: done}} }
	a := Side{Elapsed: 3, Counts: Counts{Done: 60}, Rounds: []Round{round(10), round(20), round(30)}}
	b := Side{Elapsed: 3, Counts: Counts{Done: 30}, Rounds: []Round{round(10), round(10), round(10)}}
	got := Ratios(&a, &b)
	want := []Ratio{{Figure: "rate", A: "20/s", B: "10/s", Ratio: 2, Low: 1, High: 3, Rounds: 3, Better: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestSavedRunsCompareWithWhatDiffersBetweenThem(t *testing.T) {
	a, b := made(1, 2), made(2, 4)
	b.Environment.Kernel, b.Sides[0].Target = "Linux 6.12", "127.0.0.2:9092"
	b.Settings = append(b.Settings, Setting{"timeout", "5s"})
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := c.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Linux 6.12", "127.0.0.2:9092", "timeout", "not interleaved", "one measurement", "p99.9", "cpu_per_op"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, text.String())
		}
	}
	b.Scenario = "steady"
	if _, err := Compare(a, b); err == nil {
		t.Error("a storm was compared with a steady load")
	}
}

func TestTheTextShowsWhatDecides(t *testing.T) {
	r := made(1, 2)
	r.Verdict.Void = []string{"lag p99 1.2ms is above 20% of the latency's p99"}
	all, _ := ParseAssertions("failed=0")
	all.Evaluate(r)
	cal := made(3, 1).Sides[0]
	r.Calibration = &cal
	r.Sides = append(r.Sides, made(2, 2).Sides...)
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"storm on 127.0.0.1:9092", "poisson:203/s", "VOID", "lag p99", "BROKEN", "failed=0", "kill broker 2",
		"reset", "connection reset by peer", "calibration", "p99.9", "ListenOverflows 1", "per operation", "ratio"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, text.String())
		}
	}
	t.Log("\n" + text.String())
}

func TestHGRMIsWhatPlottersRead(t *testing.T) {
	var b bytes.Buffer
	h := histogramOf(RunDigits, time.Millisecond, 2*time.Millisecond)
	if err := h.WriteHGRM(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Value\tPercentile\tTotalCount\t1/(1-Percentile)", "#[Mean", "Total count    =            2]", "1.000000            2          inf"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if err := (Histogram{}).WriteHGRM(&b); err != nil {
		t.Error(err)
	}
}

func TestFiguresAreWrittenShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ns", 999: "999ns", 1500: "1.50µs", 999_600: "1.00ms", 41_234: "41.2µs", 12_345_678: "12.3ms", 123_456_789: "123ms", 5 * time.Second: "5.00s", 90 * time.Second: "90.0s",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 1234567: "1,234,567", 999: "999", 1000: "1,000", 12.345: "12.3"} {
		if got := formatNumber(v); got != want {
			t.Errorf("%g: %s, want %s", v, got, want)
		}
	}
}
