package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// figureChart is a chart of the page, drawn for every canvas.
type figureChart struct {
	Title  string
	Note   string
	Legend []legend
	SVG    template.HTML // ours: every text in it is escaped where it is written
}

type legend struct{ Class, Text string }

// maxColumns is how many windows are drawn; longer runs have several put together, without loss.
const maxColumns = 240

// curves are the percentiles drawn over time.
var curves = []struct {
	percentile float64
	class      string
}{{99.9, "p999"}, {99, "p99"}, {90, "p90"}, {50, "p50"}}

// charts draws everything over the run's time or its latencies.
type charts struct {
	run    *Run
	end    float64 // seconds
	events []Event
}

func (r *Run) charts() *charts {
	c := &charts{run: r, end: r.Duration, events: r.Events}
	for i := range r.Sides {
		for _, w := range r.Sides[i].Windows {
			c.end = max(c.end, w.At+w.Seconds)
		}
	}
	if !(c.end > 0) || math.IsInf(c.end, 0) {
		c.end = 1
	}
	return c
}

// draw has plot fill a chart for each canvas.
func (c *charts) draw(name string, plot func(*chart)) template.HTML {
	var b strings.Builder
	for _, canvas := range canvases {
		ch := &chart{canvas: canvas}
		plot(ch)
		b.WriteString(ch.svg(name))
	}
	return template.HTML(b.String())
}

// overTime prepares a chart whose x is time, with room for the events' badges.
func (c *charts) overTime(ch *chart, labels bool, yTop func(ch *chart) []tick) {
	marks, lanes := c.place(ch, labels)
	if lanes > 0 {
		ch.height += float64(lanes)*laneHeight - 4
		ch.top += float64(lanes)*laneHeight - 4
	}
	ch.x = scale{from: 0, to: c.end}
	ys := yTop(ch)
	ch.area()
	ticks := 10
	if ch.class == "narrow" {
		ticks = 5
	}
	ch.axes(timeTicks(c.end, ticks), ys)
	for _, m := range marks {
		ch.mark(m)
	}
}

// mark is an event's place in a chart.
type mark struct {
	number int
	x      float64
	lane   int
	label  string
	title  string
	failed bool
}

const (
	laneHeight = 18.0
	maxLanes   = 4
	badgeWidth = 17.0
	letter     = 6.3 // a character's width, about
)

// place gives every event a lane in which its badge, and its label if it is to have one, touch no other.
func (c *charts) place(ch *chart, labels bool) (marks []mark, lanes int) {
	var ends [maxLanes]float64
	x := scale{from: 0, to: c.end, at: ch.left, end: ch.width - ch.right}
	for i, e := range c.events {
		m := mark{number: i + 1, x: x.pos(min(max(e.At, 0), c.end)), failed: e.Error != ""}
		m.title = fmt.Sprintf("%d: %s at %s", m.number, e.Name, formatEventTime(e.At))
		width := badgeWidth
		if labels && ch.class == "wide" {
			m.label = shorten(e.Name, 28)
			width += 4 + letter*float64(len([]rune(m.label)))
		}
		if m.x-badgeWidth/2+width > ch.width { // no room to the right
			m.label, width = "", badgeWidth
		}
		m.lane = -1
		for lane := range ends {
			if ends[lane] <= m.x-badgeWidth/2-3 {
				m.lane = lane
				break
			}
		}
		if m.lane < 0 { // none is free: only the line is drawn, the list has the rest
			m.label = ""
		} else {
			ends[m.lane] = m.x - badgeWidth/2 + width
			lanes = max(lanes, m.lane+1)
		}
		marks = append(marks, m)
	}
	return marks, lanes
}

func (c *chart) mark(m mark) {
	class := "event"
	if m.failed {
		class = "event broken"
	}
	y := 8.0
	if m.lane >= 0 {
		y = 9 + float64(m.lane)*laneHeight
	}
	c.printf(`<g class="%s"><path d="M%s %sV%s"/>`, class, px(m.x), px(y), px(c.height-c.bottom))
	if m.lane >= 0 {
		c.printf(`<rect x="%s" y="%s" width="17" height="16" rx="8"/>`, px(m.x-badgeWidth/2), px(y-8))
		c.text("badge", m.x, y+4, fmt.Sprint(m.number))
	}
	if m.label != "" {
		c.text("label", m.x+badgeWidth/2+3, y+4, m.label)
	}
	c.printf("<title>")
	c.b.WriteString(template.HTMLEscapeString(m.title))
	c.printf("</title></g>")
}

// columns are a side's windows, so many put together that no more than maxColumns are left.
func columns(s *Side) []Window {
	n := (len(s.Windows) + maxColumns - 1) / maxColumns
	if n <= 1 {
		return s.Windows
	}
	var out []Window
	for group := range slices.Chunk(s.Windows, n) {
		sum := group[0]
		sum.Counts, sum.Classes, sum.Kernel, sum.Latency, sum.CPU, sum.Seconds = Counts{}, map[string]uint64{}, map[string]uint64{}, Histogram{}, 0, 0
		for _, w := range group {
			sum.Seconds += w.Seconds
			sum.CPU += w.CPU
			sum.Counts.add(w.Counts)
			_ = sum.Latency.Add(w.Latency) // windows of one run have the same digits
			addCounters(sum.Classes, w.Classes)
			addCounters(sum.Kernel, w.Kernel)
		}
		out = append(out, sum)
	}
	return out
}

func addCounters(sum, more map[string]uint64) {
	for name, n := range more {
		sum[name] += n
	}
}

// trace makes a line of windows; it breaks where value is NaN and where windows are missing.
func trace(windows []Window, value func(Window) float64) []point {
	var points []point
	for i, w := range windows {
		if i > 0 && w.At-(windows[i-1].At+windows[i-1].Seconds) > 0.5*w.Seconds {
			points = append(points, point{w.At, math.NaN()})
		}
		points = append(points, point{w.At + w.Seconds/2, value(w)})
	}
	return points
}

// latencyBounds are those of all sides' windows, so that charts side by side share them.
func (c *charts) latencyBounds() (low, high float64) {
	low, high = math.Inf(1), 0
	for i := range c.run.Sides {
		for _, w := range columns(&c.run.Sides[i]) {
			if w.Latency.Count() > 0 {
				low, high = min(low, float64(w.Latency.At(50))), max(high, float64(w.Latency.At(99.9)))
			}
		}
	}
	if cal := c.run.Calibration; cal != nil && cal.Latency().Count() > 0 {
		low, high = min(low, float64(cal.Latency().At(99))), max(high, float64(cal.Latency().At(99)))
	}
	return low, high
}

// latency draws percentiles over time.
func (c *charts) latency(s *Side) (figureChart, bool) {
	low, high := c.latencyBounds()
	windows := columns(s)
	if high == 0 || len(windows) == 0 {
		return figureChart{}, false
	}
	f := figureChart{Title: c.titled("Latency over time", s)}
	for _, curve := range slices.Backward(curves) {
		f.Legend = append(f.Legend, legend{curve.class, fmt.Sprintf("p%g", curve.percentile)})
	}
	cal := c.run.Calibration
	if cal != nil {
		f.Legend = append(f.Legend, legend{"calibration", "p99 of a server that does nothing"})
	}
	f.SVG = c.draw(f.Title, func(ch *chart) {
		c.overTime(ch, true, func(ch *chart) []tick {
			ticks, from, to := logTicks(low, high, shortDuration)
			ch.y = scale{from: from, to: to, log: true}
			return ticks
		})
		if cal != nil && cal.Latency().Count() > 0 {
			ch.level("calibration", float64(cal.Latency().At(99)), "null server p99 "+formatDuration(cal.Latency().At(99)))
		}
		for _, curve := range curves {
			ch.line(curve.class, trace(windows, func(w Window) float64 {
				if w.Latency.Count() == 0 {
					return math.NaN()
				}
				return float64(w.Latency.At(curve.percentile))
			}))
		}
		for _, w := range windows {
			if w.Latency.Count() == 0 {
				ch.hover(w.At, w.At+w.Seconds, fmt.Sprintf("%s: nothing answered", formatSeconds(w.At)))
				continue
			}
			text := fmt.Sprintf("%s: %s answered", formatSeconds(w.At), formatNumber(float64(w.Done)))
			for _, p := range percentiles {
				text += fmt.Sprintf("\np%g %s", p, formatDuration(w.Latency.At(p)))
			}
			ch.hover(w.At, w.At+w.Seconds, text)
		}
	})
	return f, true
}

// titled adds the side's name where there are two.
func (c *charts) titled(title string, s *Side) string {
	if len(c.run.Sides) > 1 {
		return title + " · " + s.Label()
	}
	return title
}

// sideClass is the colour of a side.
func sideClass(i int) string { return []string{"a", "b"}[i] }

// percentileCurve draws latency by percentile: of every side, the calibration and the generator's lag.
func (c *charts) percentileCurve() (figureChart, bool) {
	type curve struct {
		class, name string
		h           Histogram
	}
	var all []curve
	for i := range c.run.Sides {
		s := &c.run.Sides[i]
		all = append(all, curve{sideClass(i), s.Label(), s.Latency()})
	}
	if cal := c.run.Calibration; cal != nil {
		all = append(all, curve{"calibration", "server that does nothing", cal.Latency()})
	}
	all = append(all, curve{"lag", "the generator's own lag", c.run.Sides[0].Stages[StageLag]})
	all = slices.DeleteFunc(all, func(v curve) bool { return v.h.Count() == 0 })
	if len(all) == 0 || all[0].class == "lag" {
		return figureChart{}, false
	}
	f := figureChart{Title: "Latency by percentile"}
	low, high, most := math.Inf(1), 0.0, int64(0)
	for _, v := range all {
		f.Legend = append(f.Legend, legend{v.class, v.name})
		low, high, most = min(low, float64(v.h.At(1))), max(high, float64(v.h.Highest())), max(most, v.h.Count())
	}
	nines := max(1, math.Log10(float64(most)))
	f.SVG = c.draw(f.Title, func(ch *chart) {
		ticks, from, to := logTicks(low, high, shortDuration)
		ch.y = scale{from: from, to: to, log: true}
		ch.x = scale{from: 0, to: nines}
		ch.area()
		xs := []tick{{0, "0"}, {math.Log10(2), "p50"}}
		for n := 1.0; n <= nines; n++ {
			var label string
			switch n {
			case 1:
				label = "p90"
			case 2:
				label = "p99"
			default:
				label = "p99." + strings.Repeat("9", int(n)-2)
			}
			xs = append(xs, tick{n, label})
		}
		ch.axes(xs, ticks)
		for _, v := range slices.Backward(all) {
			var points []point
			last := math.Log10(float64(v.h.Count()))
			for _, b := range v.h.CumulativeDistributionWithTicks(10) {
				x := last
				if b.Quantile < 100 {
					x = min(last, -math.Log10(1-b.Quantile/100))
				}
				points = append(points, point{x, float64(b.ValueAt)})
			}
			ch.line(v.class, points)
		}
	})
	return f, true
}
