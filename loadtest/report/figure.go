package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/failure"
)

// unit is how a figure is written.
type unit int

const (
	count unit = iota
	rate       // per second
	nanos
	percent
	times // a ratio
)

// figure is one number about a side, as assertions and comparisons name it. of reports false when it was not measured.
type figure struct {
	name string
	unit unit
	of   func(*Side) (float64, bool)
}

// counted are the figures that are not percentiles.
var counted = []figure{
	{"rate", rate, func(s *Side) (float64, bool) { return s.Rate(), s.Elapsed > 0 }},
	{"failed", count, func(s *Side) (float64, bool) { return float64(s.Failed), true }},
	{"failed_share", percent, func(s *Side) (float64, bool) { return 100 * share(s.Failed, s.Done+s.Failed), true }},
	{"failed_local", count, func(s *Side) (float64, bool) { return float64(s.Local), true }},
	{"intended", count, func(s *Side) (float64, bool) { return float64(s.Intended), true }},
	{"started", count, func(s *Side) (float64, bool) { return float64(s.Started), true }},
	{"done", count, func(s *Side) (float64, bool) { return float64(s.Done), true }},
	{"idle_lost", count, func(s *Side) (n float64, ok bool) {
		for _, f := range s.Failures {
			n += float64(f.Idle)
		}
		return n, true
	}},
	{"partition_errors", count, func(s *Side) (float64, bool) { return float64(s.PartitionErrors), true }},
	{"coordinator_errors", count, func(s *Side) (float64, bool) { return float64(s.CoordinatorErrors), true }},
	{"cpu_per_op", nanos, func(s *Side) (float64, bool) { d, ok := s.CPUPerOperation(); return float64(d), ok }},
}

// figureOf finds a figure by its name: rate, failed, p99, max, lag_p99.9, failed_reset, ListenOverflows...
func figureOf(name string) (figure, bool) {
	if i := slices.IndexFunc(counted, func(f figure) bool { return f.name == name }); i >= 0 {
		return counted[i], true
	}
	if class, ok := strings.CutPrefix(name, "failed_"); ok {
		return ofClass(name, class)
	}
	if name != "" && name[0] >= 'A' && name[0] <= 'Z' { // the kernel's counters, and they alone
		return figure{name, count, func(s *Side) (float64, bool) { n, ok := s.Kernel[name]; return float64(n), ok }}, true
	}
	stage, what := StageOperation, name
	if i := strings.LastIndexByte(name, '_'); i > 0 {
		stage, what = name[:i], name[i+1:]
	}
	of, ok := statistic(what)
	if !ok {
		return figure{}, false
	}
	return figure{name, nanos, func(s *Side) (float64, bool) {
		h := s.Stages[stage]
		return of(h), h.Count() > 0
	}}, true
}

func ofClass(name, class string) (figure, bool) {
	for c := failure.None + 1; c < failure.Classes; c++ {
		if c.String() == class {
			return figure{name, count, func(s *Side) (n float64, ok bool) {
				for _, f := range s.Failures {
					if f.Class == class {
						n += float64(f.Count)
					}
				}
				return n, true
			}}, true
		}
	}
	return figure{}, false
}

// statistic is max, mean or a percentile of a histogram.
func statistic(what string) (func(Histogram) float64, bool) {
	switch what {
	case "max":
		return func(h Histogram) float64 { return float64(h.Highest()) }, true
	case "mean":
		return func(h Histogram) float64 {
			if h.Count() == 0 {
				return 0
			}
			return h.Mean()
		}, true
	}
	digits, ok := strings.CutPrefix(what, "p")
	p, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || !(p > 0 && p <= 100) || strings.ContainsAny(digits, "+-eExX_iInN") {
		return nil, false
	}
	return func(h Histogram) float64 { return float64(h.At(p)) }, true
}

// figureNames is what to say to who asked for a figure that there is not.
func figureNames() string {
	names := []string{"p50, p99.9 and so on", "max", "mean", "lag_p99 and so on for any stage"}
	for _, f := range counted {
		names = append(names, f.name)
	}
	return strings.Join(append(names, "failed_CLASS (failed_reset)", "a kernel counter (ListenOverflows)"), ", ")
}

func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// format writes a value for people.
func (u unit) format(v float64) string {
	switch u {
	case nanos:
		return formatDuration(time.Duration(v))
	case rate:
		return formatNumber(v) + "/s"
	case percent:
		return strconv.FormatFloat(v, 'g', 3, 64) + "%"
	case times:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return formatNumber(v)
}

// formatDuration writes three digits and a unit: 41.2us as 41.2µs, 1.07ms, 5.00s.
func formatDuration(d time.Duration) string {
	v, name := float64(d), "ns"
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if math.Abs(float64(d)) >= float64(u.of)*0.9995 {
			v, name = float64(d)/float64(u.of), u.name
			break
		}
	}
	if name == "ns" {
		return fmt.Sprintf("%.0f%s", v, name)
	}
	decimals := 2
	switch a := math.Abs(v); {
	case a >= 99.95:
		decimals = 0
	case a >= 9.995:
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64) + name
}

// formatNumber writes whole numbers with thousands apart, and small broken ones to three digits.
func formatNumber(v float64) string {
	if v != math.Trunc(v) && math.Abs(v) < 100 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	digits := strings.TrimPrefix(s, "-")
	var b strings.Builder
	b.WriteString(s[:len(s)-len(digits)])
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

func formatSeconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// formatEventTime writes a time within a run as the axes do: in seconds, unless there are many.
func formatEventTime(s float64) string {
	if s < 600 {
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	}
	return formatSeconds(s)
}

func formatBytes(n float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= u.of {
			return strconv.FormatFloat(n/u.of, 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(n, 'f', 0, 64) + " B"
}

// shorten cuts a text to n characters.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
