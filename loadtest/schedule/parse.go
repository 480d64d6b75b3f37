package schedule

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Parse reads a profile as it is written on a command line:
//
//	1000                        1000 operations per second, for the given length
//	100@10s,100-5000@30s,5000@5s   steps: a rate, or from one rate to another, for a time
//	trace:arrivals.txt          one operation per line of the file, at that time
//
// length is used by the first form only.
func Parse(text string, length time.Duration) (*Profile, error) {
	if path, ok := strings.CutPrefix(text, "trace:"); ok {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("rate %q: %w", text, err)
		}
		defer func() { _ = f.Close() }()
		p, err := Trace(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return p, nil
	}
	wrong := func(step, what string) error {
		return fmt.Errorf("rate %q: %q %s; write 1000, or steps as 100@10s,100-5000@30s, or trace:FILE", text, step, what)
	}
	var segments []Segment
	steps := strings.Split(text, ",")
	for _, step := range steps {
		rates, hold, timed := strings.Cut(strings.TrimSpace(step), "@")
		s := Segment{Length: length}
		switch {
		case timed:
			d, err := time.ParseDuration(hold)
			if err != nil {
				return nil, wrong(step, "has no length as 10s")
			}
			s.Length = d
		case len(steps) > 1:
			return nil, wrong(step, "says not how long")
		}
		from, to, ramp := strings.Cut(rates, "-")
		if !ramp {
			to = from
		}
		var err1, err2 error
		s.From, err1 = strconv.ParseFloat(strings.TrimSuffix(from, "/s"), 64)
		s.To, err2 = strconv.ParseFloat(strings.TrimSuffix(to, "/s"), 64)
		if err1 != nil || err2 != nil {
			return nil, wrong(step, "has no rate per second as 1000 or 100-5000")
		}
		segments = append(segments, s)
	}
	p, err := New(segments...)
	if err != nil {
		return nil, fmt.Errorf("rate %q: %w", text, err)
	}
	return p, nil
}

// maxTrace bounds a trace file: 10 million operations are 80 MB in memory.
const maxTrace = 10_000_000

// Trace reads a profile from recorded arrivals: one per line, as seconds ("0.25") or a duration ("250ms") since the
// beginning. Empty lines and lines that begin with # are skipped. The lines need no order.
func Trace(r io.Reader) (*Profile, error) {
	var at []time.Duration
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: %q is neither seconds (0.25) nor a duration (250ms)", n, text)
			}
			d = time.Duration(seconds * float64(time.Second))
		}
		if d < 0 || len(at) == maxTrace {
			return nil, fmt.Errorf("line %d: %q: arrivals are not negative, and %d at most", n, text, maxTrace)
		}
		at = append(at, d)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(at) == 0 {
		return nil, errors.New("the trace holds no arrival")
	}
	slices.Sort(at)
	return &Profile{trace: at, starts: []time.Duration{0, at[len(at)-1] + time.Nanosecond}}, nil
}
