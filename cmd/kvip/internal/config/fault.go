package config

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fault is one thing that is wrong, or doubtful, in a configuration.
type Fault struct {
	// File is the name as the caller gave it.
	File string
	// Line and Col count from 1, Col in characters; Line 0 means the file as a whole.
	Line, Col int
	// Source is that line as it stands in the file, Width how many characters of it are meant.
	Source string
	Width  int
	// What says what is wrong, Fix what to write instead.
	What, Fix string
	// Warning says that kvip starts all the same.
	Warning bool
}

// String shows the fault as compilers do: place and fault, the line with carets under the place, the fix.
func (f Fault) String() string {
	severity := "error"
	if f.Warning {
		severity = "warning"
	}
	var b strings.Builder
	if f.Line == 0 {
		fmt.Fprintf(&b, "%s: %s: %s\n", f.File, severity, f.What)
	} else {
		fmt.Fprintf(&b, "%s:%d:%d: %s: %s\n", f.File, f.Line, f.Col, severity, f.What)
		number := fmt.Sprintf("%4d", f.Line)
		source, before, width := f.window()
		fmt.Fprintf(&b, "%s | %s\n", number, source)
		fmt.Fprintf(&b, "%s | %s%s\n", strings.Repeat(" ", len(number)), blank(before), strings.Repeat("^", width))
	}
	if f.Fix != "" {
		fmt.Fprintf(&b, "  fix: %s\n", f.Fix)
	}
	return b.String()
}

// window returns what of the line is shown (all of it, but for very long ones), what of it stands before the carets, and
// their number. Control characters are replaced, for the line is printed on terminals.
func (f Fault) window() (source, before string, width int) {
	const most, lead = 200, 60
	line := []rune(strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, f.Source))
	col := min(f.Col-1, len(line))
	prefix, suffix := "", ""
	if len(line) > most && col > lead {
		line, col, prefix = line[col-lead:], lead, "… "
	}
	if len(line) > most {
		line, suffix = line[:most], " …"
	}
	return prefix + string(line) + suffix, prefix + string(line[:col]), min(max(f.Width, 1), max(len(line)-col, 1))
}

// blank returns white space as wide as s: tabs stay tabs, so that what follows stands right.
func blank(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, s)
}

// Faults are all faults of one file, in the order of its lines.
type Faults []Fault

// Errors counts the faults that keep kvip from starting.
func (fs Faults) Errors() int {
	n := 0
	for _, f := range fs {
		if !f.Warning {
			n++
		}
	}
	return n
}

// Error makes Faults an error, for callers that got some with Errors() > 0.
func (fs Faults) Error() string {
	var b strings.Builder
	for _, f := range fs {
		b.WriteString(f.String())
	}
	return b.String()
}

// sorted orders by place, errors before warnings, and drops what is told twice (a fault under an anchor that several
// aliases name).
func (fs Faults) sorted() Faults {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		if c := a.Line - b.Line; c != 0 {
			return c
		}
		if c := a.Col - b.Col; c != 0 {
			return c
		}
		switch {
		case a.Warning == b.Warning:
			return 0
		case a.Warning:
			return 1
		default:
			return -1
		}
	})
	return slices.Compact(fs)
}

// quote shows a value of the file in a message: short, and safe for a terminal.
func quote(s string) string {
	const limit = 64
	if utf8.RuneCountInString(s) > limit {
		s = string([]rune(s)[:limit]) + "…"
	}
	return fmt.Sprintf("%q", s)
}

// oneOf lists words as a sentence does: a, b or c.
func oneOf(words []string) string {
	switch len(words) {
	case 0:
		return ""
	case 1:
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// nearest returns the word that was probably meant, or "".
func nearest(got string, words []string) string {
	best, bestDistance := "", max(1, len(got)/3)+1
	for _, w := range words {
		if d := distance(strings.ToLower(got), strings.ToLower(w)); d < bestDistance {
			best, bestDistance = w, d
		}
	}
	return best
}

// distance counts the edits between two short words: insert, delete, replace, and swap of two neighbours.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	var before []int
	prev := make([]int, len(y)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range x {
		row := make([]int, len(y)+1)
		row[0] = i + 1
		for j := range y {
			cost := 1
			if x[i] == y[j] {
				cost = 0
			}
			row[j+1] = min(prev[j+1]+1, row[j]+1, prev[j]+cost)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(y)]
}
