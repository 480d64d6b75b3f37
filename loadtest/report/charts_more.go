package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// rate draws operations per second: what the schedule asked for, and what was done.
func (c *charts) rate() (figureChart, bool) {
	f := figureChart{Title: "Operations per second"}
	top := 0.0
	all := make([][]Window, len(c.run.Sides))
	for i := range c.run.Sides {
		all[i] = columns(&c.run.Sides[i])
		for _, w := range all[i] {
			top = max(top, float64(w.Done)/w.Seconds)
			if c.run.Loop == LoopOpen {
				top = max(top, float64(w.Intended)/w.Seconds)
			}
		}
		name := "done"
		if len(c.run.Sides) > 1 {
			name += " by " + c.run.Sides[i].Label()
		}
		f.Legend = append(f.Legend, legend{sideClass(i), name})
	}
	if top == 0 {
		return f, false
	}
	if c.run.Loop == LoopOpen {
		f.Legend = append(f.Legend, legend{"intended", "intended by the schedule"})
	}
	f.SVG = c.draw(f.Title, func(ch *chart) {
		c.overTime(ch, false, c.linear(top, shortNumber))
		for i, windows := range all {
			if c.run.Loop == LoopOpen {
				ch.line("intended", steps(windows, func(w Window) float64 { return float64(w.Intended) / w.Seconds }))
			}
			ch.line(sideClass(i), steps(windows, func(w Window) float64 { return float64(w.Done) / w.Seconds }))
			for _, w := range windows {
				ch.hover(w.At, w.At+w.Seconds, fmt.Sprintf("%s: %s intended, %s started, %s done, %s failed, %s failed by this machine, %s connections open", formatSeconds(w.At),
					formatNumber(float64(w.Intended)), formatNumber(float64(w.Started)), formatNumber(float64(w.Done)), formatNumber(float64(w.Failed)), formatNumber(float64(w.Local)), formatNumber(float64(w.Open))))
			}
		}
	})
	return f, true
}

// linear returns what sets a linear y from 0 to top.
func (c *charts) linear(top float64, format func(float64) string) func(*chart) []tick {
	return func(ch *chart) []tick {
		ticks, end := linearTicks(top*1.04, 5, format)
		ch.y = scale{from: 0, to: end}
		return ticks
	}
}

// steps makes a line that holds a window's value over the whole of it.
func steps(windows []Window, value func(Window) float64) []point {
	var points []point
	for i, w := range windows {
		if i > 0 && w.At-(windows[i-1].At+windows[i-1].Seconds) > 0.5*w.Seconds {
			points = append(points, point{w.At, math.NaN()})
		}
		v := value(w)
		points = append(points, point{w.At, v}, point{w.At + w.Seconds, v})
	}
	return points
}

// stacked draws counters over time, one on the other.
func (c *charts) stacked(title string, s *Side, of func(Window) map[string]uint64, colour string) (figureChart, bool) {
	windows := columns(s)
	totals, top := map[string]uint64{}, uint64(0)
	for _, w := range windows {
		sum := uint64(0)
		for name, n := range of(w) {
			totals[name] += n
			sum += n
		}
		top = max(top, sum)
	}
	if top == 0 {
		return figureChart{}, false
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(totals)), func(name string) bool { return totals[name] == 0 })
	slices.SortStableFunc(names, func(a, b string) int { // the most frequent at the bottom
		if totals[a] > totals[b] {
			return -1
		}
		return 1
	})
	f := figureChart{Title: c.titled(title, s)}
	for i, name := range names {
		f.Legend = append(f.Legend, legend{fmt.Sprintf("%s%d", colour, i%8), fmt.Sprintf("%s (%s)", name, formatNumber(float64(totals[name])))})
	}
	f.SVG = c.draw(f.Title, func(ch *chart) {
		c.overTime(ch, false, c.linear(float64(top), shortNumber))
		for _, w := range windows {
			base, told := 0.0, []string{formatSeconds(w.At)}
			for i, name := range names {
				n := float64(of(w)[name])
				if n == 0 {
					continue
				}
				ch.bar(fmt.Sprintf("%s%d", colour, i%8), w.At, w.At+w.Seconds, base, base+n)
				base += n
				told = append(told, name+" "+formatNumber(n))
			}
			if base > 0 {
				ch.hover(w.At, w.At+w.Seconds, strings.Join(told, "\n"))
			}
		}
	})
	return f, true
}

// cpu draws the target's processor time per operation.
func (c *charts) cpu() (figureChart, bool) {
	f := figureChart{Title: "The target's processor time per operation"}
	of := func(w Window) float64 {
		if w.Done == 0 || w.CPU == 0 {
			return math.NaN()
		}
		return w.CPU / float64(w.Done) * 1e9
	}
	top := 0.0
	all := make([][]Window, len(c.run.Sides))
	for i := range c.run.Sides {
		s := &c.run.Sides[i]
		all[i] = columns(s)
		found := false
		for _, w := range all[i] {
			if v := of(w); !math.IsNaN(v) {
				top, found = max(top, v), true
			}
		}
		if d, ok := s.CPUPerOperation(); ok && found {
			f.Legend = append(f.Legend, legend{sideClass(i), fmt.Sprintf("%s: %s over the whole run", s.Label(), formatDuration(d))})
		}
	}
	if top == 0 {
		return f, false
	}
	f.SVG = c.draw(f.Title, func(ch *chart) {
		c.overTime(ch, false, c.linear(top, shortDuration))
		for i, windows := range all {
			ch.line(sideClass(i), trace(windows, of))
			for _, w := range windows {
				if v := of(w); !math.IsNaN(v) {
					ch.hover(w.At, w.At+w.Seconds, fmt.Sprintf("%s: %s per operation, %.2f cores", formatSeconds(w.At), nanos.format(v), w.CPU/w.Seconds))
				}
			}
		}
	})
	return f, true
}
