package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

// cell is one measurement.
type cell struct {
	Operation  string  `json:"operation"`
	Target     string  `json:"target"`
	Round      int     `json:"round"`
	CPUMicros  float64 `json:"cpu_us_per_op"` // the server's user + system time over answered operations
	Cores      float64 `json:"cores"`         // of the server's, while measured
	Rate       float64 `json:"ops_per_second"`
	Answered   uint64  `json:"answered"`
	Bytes      float64 `json:"answer_bytes_per_op"`
	P50Micros  float64 `json:"p50_us"`
	P99Micros  float64 `json:"p99_us"`
	P999Micros float64 `json:"p999_us"`
	MaxMicros  float64 `json:"max_us"`

	LagP99Micros float64 `json:"lag_p99_us"` // how late the generator began, open loop
}

// report is what a run found.
type report struct {
	Clock       string             `json:"clock"`
	Environment map[string]string  `json:"environment"`
	Cluster     string             `json:"cluster"`
	Bytes       map[string]int     `json:"answer_bytes"`
	Clients     int                `json:"clients"`
	Idle        map[string]float64 `json:"idle_cores"`
	Cells       []cell             `json:"cells"`

	operations []operation
	targets    []string
}

func newReport(o options, ops []operation, s *stand) *report {
	r := &report{
		Clock: "clock_gettime on the server's process CPU clock (user + system of all threads, ns)",
		Environment: map[string]string{
			"cpus": fmt.Sprint(runtime.NumCPU()), "go": runtime.Version(), "os": kernel(), "nofile": descriptors(),
		},
		Cluster: fmt.Sprintf("3 brokers, %d topics x %d partitions x 3 replicas", o.Topics, o.Partitions),
		Clients: o.Clients, Idle: map[string]float64{}, operations: ops,
		Bytes: map[string]int{
			"api_versions": len(s.answers[0].Response), "metadata_all": len(s.answers[1].Response), "metadata_one": len(s.answers[2].Response),
		},
	}
	for _, t := range s.targets {
		r.targets = append(r.targets, t.name)
	}
	return r
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return runtime.GOOS
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

func descriptors() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return "unknown"
	}
	return fmt.Sprint(l.Cur)
}

// spread is the median of some figures and their range.
type spread struct{ Median, Min, Max float64 }

func spreadOf(v []float64) spread {
	if len(v) == 0 {
		return spread{}
	}
	v = slices.Sorted(slices.Values(v))
	mid := len(v) / 2
	median := v[mid]
	if len(v)%2 == 0 {
		median = (v[mid-1] + v[mid]) / 2
	}
	return spread{median, v[0], v[len(v)-1]}
}

func (s spread) format(digits int) string {
	return fmt.Sprintf("%.*f (%.*f-%.*f)", digits, s.Median, digits, s.Min, digits, s.Max)
}

func (r *report) pick(op, target string, f func(cell) float64) (v []float64) {
	for _, c := range r.Cells {
		if c.Operation == op && c.Target == target {
			v = append(v, f(c))
		}
	}
	return v
}

func cpuOf(c cell) float64 { return c.CPUMicros }

// answering is what a target's answers cost beyond what it uses without clients, which in its case is refreshes and probes
// and does not grow with them.
func (r *report) answering(c cell) float64 { return c.CPUMicros - r.Idle[c.Target]*1e6/c.Rate }

// ratio compares two targets round by round.
func (r *report) ratio(op, a, b string, f func(cell) float64) (spread, bool) {
	x, y := r.pick(op, a, f), r.pick(op, b, f)
	if len(x) == 0 || len(x) != len(y) {
		return spread{}, false
	}
	for i := range x {
		x[i] /= y[i]
	}
	return spreadOf(x), true
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s; answers: all topics %d B, one topic %d B, ApiVersions %d B; %d clients, closed loop\n", r.Cluster,
		r.Bytes["metadata_all"], r.Bytes["metadata_one"], r.Bytes["api_versions"], r.Clients)
	fmt.Fprintf(w, "%s, %s CPUs, %s, %s descriptors\n", r.Environment["os"], r.Environment["cpus"], r.Environment["go"], r.Environment["nofile"])
	fmt.Fprintf(w, "server CPU per operation in us, median (range) of rounds; clock: %s\n", r.Clock)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	head := table.Row{"operation"}
	for _, name := range r.targets {
		head = append(head, name)
	}
	t.AppendHeader(append(head[:len(head):len(head)], "kvip/floor", "less what they use without clients"))
	for _, op := range r.operations {
		row := table.Row{op.name}
		for _, name := range r.targets {
			row = append(row, spreadOf(r.pick(op.name, name, cpuOf)).format(1))
		}
		for _, f := range []func(cell) float64{cpuOf, r.answering} {
			ratio := ""
			if s, ok := r.ratio(op.name, "kvip", "floor", f); ok {
				ratio = s.format(2)
			}
			row = append(row, ratio)
		}
		t.AppendRow(row)
	}
	t.Render()
	fmt.Fprintln(w, "operations per second, median (range); a rate is bounded by the generator on the same CPUs: compare CPU, not rates")
	rates := table.NewWriter()
	rates.SetOutputMirror(w)
	rates.AppendHeader(head)
	for _, op := range r.operations {
		row := table.Row{op.name}
		for _, name := range r.targets {
			row = append(row, spreadOf(r.pick(op.name, name, func(c cell) float64 { return c.Rate })).format(0))
		}
		rates.AppendRow(row)
	}
	rates.Render()
	for _, op := range r.operations {
		fmt.Fprintf(w, "%s, bytes of answers per operation:", op.name)
		for _, name := range r.targets {
			fmt.Fprintf(w, " %s %.0f", name, spreadOf(r.pick(op.name, name, func(c cell) float64 { return c.Bytes })).Median)
		}
		fmt.Fprintln(w)
	}
	for _, name := range r.targets {
		fmt.Fprintf(w, "%s without load: %.1f %% of a core\n", name, r.Idle[name]*100)
	}
}

func (r *report) write(path string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

// judge fails when answers of kvip cost more than limit times the floor's.
func (r *report) judge(limit float64) error {
	if limit <= 0 {
		return nil
	}
	var over []string
	for _, op := range r.operations {
		s, ok := r.ratio(op.name, "kvip", "floor", r.answering)
		switch {
		case !ok:
			return fmt.Errorf("--max-ratio needs the targets kvip and floor")
		case s.Median > limit:
			over = append(over, fmt.Sprintf("%s %.2f", op.name, s.Median))
		}
	}
	if len(over) > 0 {
		return fmt.Errorf("kvip costs more than %.2f times the floor: %s", limit, strings.Join(over, ", "))
	}
	return nil
}

func failures(r *record.Result) string {
	var parts []string
	for class, n := range r.Failed {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s %q", n, failure.Class(class), r.Details[failure.Class(class)]))
		}
	}
	return strings.Join(parts, ", ")
}
