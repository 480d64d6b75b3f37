package schedule

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// moments of all parts, in order.
func moments(t interface{ Fatal(...any) }, p *Profile, a Arrival, seed uint64, parts int) []time.Duration {
	var all []time.Duration
	for part := range parts {
		b, err := p.Beats(a, seed, part, parts)
		if err != nil {
			t.Fatal(err)
		}
		last := time.Duration(0)
		for at, ok := b.Next(); ok; at, ok = b.Next() {
			if at < last {
				t.Fatal("moments go back:", at, "after", last)
			}
			last = at
			all = append(all, at)
		}
	}
	slices.Sort(all)
	return all
}

// TestRegularBeatsFollowTheProfileHoweverManyShareIt: up to any time, as many beats as the rate's integral says.
func TestRegularBeatsFollowTheProfileHoweverManyShareIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var segments []Segment
		for range rapid.IntRange(1, 5).Draw(t, "segments") {
			segments = append(segments, Segment{
				Length: time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond,
				From:   float64(rapid.IntRange(0, 500).Draw(t, "from")), To: float64(rapid.IntRange(0, 500).Draw(t, "to")),
			})
		}
		p, err := New(segments...)
		if err != nil {
			t.Skip(err)
		}
		got := moments(t, p, Regular, 1, rapid.IntRange(1, 7).Draw(t, "parts"))
		want, begin := 0.0, time.Duration(0)
		for _, s := range segments {
			for _, share := range []float64{0.25, 0.5, 1} {
				length := s.Length.Seconds()
				rate := s.From + (s.To-s.From)*share
				expect := want + (s.From+rate)/2*share*length
				until := begin + time.Duration(share*float64(s.Length))
				n, _ := slices.BinarySearch(got, until)
				if math.Abs(float64(n)-expect) > 0.5+1e-3 {
					t.Fatalf("%d beats up to %s, want %.2f of %+v", n, until, expect, segments)
				}
			}
			want += (s.From + s.To) / 2 * s.Length.Seconds()
			begin += s.Length
		}
	})
}

func TestPoissonBeatsAreIndependentAndSeeded(t *testing.T) {
	p, err := New(Segment{100 * time.Second, 0, 200}, Segment{100 * time.Second, 200, 200})
	if err != nil {
		t.Fatal(err)
	}
	got := moments(t, p, Poisson, 7, 3)
	if !slices.Equal(got, moments(t, p, Poisson, 7, 3)) {
		t.Error("the same seed gave other moments")
	}
	if slices.Equal(got, moments(t, p, Poisson, 8, 3)) {
		t.Error("another seed gave the same moments")
	}
	ramp, _ := slices.BinarySearch(got, 100*time.Second)
	if n := len(got) - ramp; math.Abs(float64(ramp)-10_000) > 500 || math.Abs(float64(n)-20_000) > 700 {
		t.Errorf("%d beats in the ramp, %d in the hold, want about 10000 and 20000: five standard deviations off", ramp, n)
	}
	// Counts per 100 ms of the hold: a Poisson process has a variance that equals its mean, 20; regular beats have none.
	counts := make([]float64, 1000)
	for _, at := range got[ramp:] {
		counts[int((at-100*time.Second)/(100*time.Millisecond))]++
	}
	mean, variance := 0.0, 0.0
	for _, c := range counts {
		mean += c / 1000
	}
	for _, c := range counts {
		variance += (c - mean) * (c - mean) / 1000
	}
	if variance < 0.75*mean || variance > 1.25*mean {
		t.Errorf("counts per 100 ms: mean %.1f, variance %.1f", mean, variance)
	}
}

func TestProfilesAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]struct {
		count, peak float64
		length      time.Duration
	}{
		"1000":                        {10_000, 1000, 10 * time.Second},
		"2.5/s":                       {25, 2.5, 10 * time.Second},
		"100@10s,100-500@20s,0@1m":    {1000 + 6000, 500, 90 * time.Second},
		"0-100@1s, 5000@100ms, 10@1s": {50 + 500 + 10, 5000, 2100 * time.Millisecond},
	} {
		p, err := Parse(text, 10*time.Second)
		if err != nil {
			t.Error(err)
			continue
		}
		if math.Abs(p.Count()-want.count) > 1e-6 || p.Peak() != want.peak || p.Length() != want.length {
			t.Errorf("%q: %g operations, peak %g/s, %s; want %+v", text, p.Count(), p.Peak(), p.Length(), want)
		}
	}
	for text, want := range map[string]string{
		"":             "has no rate",
		"fast":         "has no rate",
		"10@10s,20":    "says not how long",
		"10@ten":       "has no length",
		"-5":           "has no rate",
		"1e9":          "a rate 0 to",
		"0":            "every rate is 0",
		"10@-1s":       "length must be positive",
		"trace:absent": "no such file",
	} {
		if _, err := Parse(text, time.Second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
}

func TestATraceIsReplayedLineByLine(t *testing.T) {
	p, err := Trace(strings.NewReader("# arrivals\n0.25\n\n1s\n500ms\n0\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond, time.Second}
	if got := moments(t, p, Poisson, 1, 3); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if p.Count() != 4 || p.Peak() != 10 || p.Length() <= time.Second {
		t.Errorf("%g operations, peak %g/s, %s", p.Count(), p.Peak(), p.Length())
	}
	for text, want := range map[string]string{"": "no arrival", "soon": "line 1", "0\n-1s": "line 2"} {
		if _, err := Trace(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
