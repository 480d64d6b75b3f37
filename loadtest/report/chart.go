package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"time"
)

// Charts are SVG written by hand rather than by gonum's plot: colours are classes, so that the page's style sheet gives
// them for light and dark, and each chart is drawn for a wide and for a narrow screen.

// canvas is the size of a chart and the room around what it plots, in pixels.
type canvas struct {
	class                    string // "wide" or "narrow"
	width, height            float64
	left, right, top, bottom float64
}

var canvases = []canvas{
	{class: "wide", width: 980, height: 270, left: 58, right: 16, top: 12, bottom: 26},
	{class: "narrow", width: 400, height: 230, left: 48, right: 8, top: 12, bottom: 26},
}

// scale takes a value to a position: linear, or by logarithm.
type scale struct {
	from, to float64 // values
	at, end  float64 // positions
	log      bool
}

func (s scale) pos(v float64) float64 {
	from, to := s.from, s.to
	if s.log {
		v, from, to = math.Log(max(v, s.from)), math.Log(from), math.Log(to)
	}
	return s.at + (min(v, to)-from)/(to-from)*(s.end-s.at)
}

// tick is a place on an axis; minor ones have a line and no text.
type tick struct {
	at    float64
	label string
}

// point of a line. A NaN y breaks the line.
type point struct{ x, y float64 }

// chart draws one SVG.
type chart struct {
	canvas
	x, y scale
	b    strings.Builder
}

func (c *chart) area() { // sets the positions of both scales to the plotted area
	c.x.at, c.x.end = c.left, c.width-c.right
	c.y.at, c.y.end = c.height-c.bottom, c.top
}

func (c *chart) printf(format string, args ...any) { fmt.Fprintf(&c.b, format, args...) }

func (c *chart) text(class string, x, y float64, s string) {
	c.printf(`<text class="%s" x="%s" y="%s">%s</text>`, class, px(x), px(y), html.EscapeString(s))
}

func (c *chart) axes(xs, ys []tick) {
	for _, t := range ys {
		y := c.y.pos(t.at)
		c.printf(`<path class="grid" d="M%s %sH%s"/>`, px(c.left), px(y), px(c.width-c.right))
		c.text("ty", c.left-7, y+4, t.label)
	}
	for _, t := range xs {
		x := c.x.pos(t.at)
		c.printf(`<path class="grid" d="M%s %sV%s"/>`, px(x), px(c.top), px(c.height-c.bottom+4))
		class := "tx"
		if x > c.width-c.right-16 {
			class = "tx last"
			x = c.width - c.right
		}
		c.text(class, x, c.height-c.bottom+17, t.label)
	}
	c.printf(`<path class="axis" d="M%s %sH%s"/>`, px(c.left), px(c.height-c.bottom), px(c.width-c.right))
}

// line draws points; a lone one becomes a dot.
func (c *chart) line(class string, points []point) {
	var d strings.Builder
	var dots []point
	for i, p := range points {
		if math.IsNaN(p.y) {
			continue
		}
		before, after := i > 0 && !math.IsNaN(points[i-1].y), i+1 < len(points) && !math.IsNaN(points[i+1].y)
		if !before && !after {
			dots = append(dots, p)
			continue
		}
		command := "L"
		if !before {
			command = "M"
		}
		d.WriteString(command + px(c.x.pos(p.x)) + " " + px(c.y.pos(p.y)))
	}
	if d.Len() > 0 {
		c.printf(`<path class="line %s" d="%s"/>`, class, d.String())
	}
	for _, p := range dots {
		c.printf(`<circle class="dot %s" cx="%s" cy="%s" r="2"/>`, class, px(c.x.pos(p.x)), px(c.y.pos(p.y)))
	}
}

// bar draws a box between two values of y.
func (c *chart) bar(class string, x1, x2, y1, y2 float64) {
	left, right, top, bottom := c.x.pos(x1), c.x.pos(x2), c.y.pos(y2), c.y.pos(y1)
	gap := 0.0
	if right-left > 4 {
		gap = 1
	}
	c.printf(`<rect class="bar %s" x="%s" y="%s" width="%s" height="%s"/>`, class, px(left), px(top), px(max(1, right-left-gap)), px(max(1, bottom-top)))
}

// level draws a horizontal line over the whole width, with its name.
func (c *chart) level(class string, v float64, label string) {
	y := c.y.pos(v)
	c.printf(`<path class="line %s" d="M%s %sH%s"/>`, class, px(c.left), px(y), px(c.width-c.right))
	c.text("level", c.width-c.right-4, y-5, label)
}

// hover lays a column over x1 to x2 that shows text when it is pointed at.
func (c *chart) hover(x1, x2 float64, text string) {
	if c.class != "wide" {
		return // fingers do not hover
	}
	l, r := c.x.pos(x1), c.x.pos(x2)
	c.printf(`<rect class="hover" x="%s" y="%s" width="%s" height="%s"><title>%s</title></rect>`,
		px(l), px(c.top), px(max(1, r-l)), px(c.height-c.bottom-c.top), html.EscapeString(text))
}

// svg returns the chart; name says what it shows to those who do not see it.
func (c *chart) svg(name string) string {
	return fmt.Sprintf(`<svg class="%s" viewBox="0 0 %s %s" role="img" aria-label="%s">%s</svg>`,
		c.class, px(c.width), px(c.height), html.EscapeString(name), c.b.String())
}

func px(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// linearTicks are at most about n round values from 0 to the first beyond top.
func linearTicks(top float64, n int, format func(float64) string) (ticks []tick, end float64) {
	if !(top > 0) {
		top = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(top/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if top/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	end = math.Ceil(top/step*(1-1e-9)) * step
	for v := 0.0; v <= end*(1+1e-9); v += step {
		ticks = append(ticks, tick{v, format(v)})
	}
	return ticks, end
}

// logTicks are 1, 10, 100..., and 2 and 5 between where there is room. The bounds are widened to the next of them.
func logTicks(low, high float64, format func(float64) string) (ticks []tick, from, to float64) {
	low, high = max(low, 1), max(high, low*2, 2)
	steps := []float64{1}
	if math.Log10(high/low) < 2.2 {
		steps = []float64{1, 2, 5}
	}
	var all []float64
	for d := math.Floor(math.Log10(low)) - 1; d <= math.Ceil(math.Log10(high))+1; d++ {
		for _, s := range steps {
			all = append(all, s*math.Pow(10, d))
		}
	}
	for _, v := range all {
		if v <= low*(1+1e-9) {
			from = v
		}
		if v >= high*(1-1e-9) {
			to = v
			break
		}
	}
	for _, v := range all {
		if v >= from*(1-1e-9) && v <= to*(1+1e-9) {
			ticks = append(ticks, tick{v, format(v)})
		}
	}
	return ticks, from, to
}

var timeSteps = []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400}

// timeTicks are at most n times from 0 to end seconds.
func timeTicks(end float64, n int) []tick {
	step := timeSteps[len(timeSteps)-1]
	for _, s := range timeSteps {
		if end/s <= float64(n) {
			step = s
			break
		}
	}
	var ticks []tick
	for i := 0; float64(i)*step <= end && i <= 100; i++ {
		ticks = append(ticks, tick{float64(i) * step, formatTime(float64(i)*step, step)})
	}
	return ticks
}

// formatTime writes a time on an axis whose ticks are step apart.
func formatTime(s, step float64) string {
	switch {
	case s == 0:
		return "0"
	case step >= 60 || s >= 600:
		d := time.Duration(math.Round(s)) * time.Second
		if d%time.Minute == 0 && d < time.Hour {
			return fmt.Sprintf("%d min", d/time.Minute)
		}
		return strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")
	}
	return strconv.FormatFloat(s, 'g', 4, 64) + " s"
}

// shortDuration writes nanoseconds on an axis: 1 ms, 200 µs.
func shortDuration(v float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		if v >= u.of*0.9999 {
			return strconv.FormatFloat(v/u.of, 'g', 3, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + " ns"
}

// shortNumber writes 12000 on an axis as 12k.
func shortNumber(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + "k"
	}
	return formatNumber(v)
}
