package loadtest

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/events"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
	"github.com/kvip/kvip/loadtest/report"
	"github.com/kvip/kvip/loadtest/scenario"
)

func counts(c *record.Counts) report.Counts {
	return report.Counts{Intended: c.Intended, Started: c.Started, Done: c.Answered, Failed: c.TargetFailures(), Local: c.LocalFailures()}
}

func classes(c *record.Counts) map[string]uint64 {
	var found map[string]uint64
	for class, n := range c.Failed {
		if n > 0 {
			if found == nil {
				found = map[string]uint64{}
			}
			found[failure.Class(class).String()] = n
		}
	}
	return found
}

func failures(r *record.Result) []report.Failure {
	var all []report.Failure
	for class := range failure.Classes {
		if n, idle := r.Failed[class], r.Dropped[class]; n+idle > 0 {
			all = append(all, report.Failure{Class: class.String(), Local: class.Local(), Count: n, Idle: idle, Examples: r.Details[class]})
		}
	}
	return all
}

// newRun is a run without figures.
func (p *plan) newRun() *report.Run {
	r := &report.Run{
		Schema: report.Schema, Title: p.Title, Scenario: p.Scenario, Loop: report.LoopOpen, Seed: p.Seed,
		Clients: p.config.Clients, Generators: 1, Settings: p.settings(), Environment: environment(p.Version),
	}
	switch {
	case p.Closed:
		r.Loop = report.LoopClosed
	case scenario.Scenarios[p.Scenario].Paced:
		r.Arrival = "as libraries do"
	default:
		r.Arrival = p.Arrival + ":" + cmp.Or(p.Rate, defaultRate)
	}
	return r
}

// settings are those that decide what was measured.
func (p *plan) settings() []report.Setting {
	cfg := &p.config
	lookup := "all topics"
	if !cfg.Lookup.All {
		lookup = fmt.Sprintf("%d topics", len(cfg.Lookup.Topics))
	}
	shares := func(all []scenario.Share) string {
		var parts []string
		for _, s := range all {
			parts = append(parts, s.Name+"="+strconv.Itoa(s.Weight))
		}
		return strings.Join(parts, ",")
	}
	kind := scenario.Scenarios[p.Scenario]
	all := []report.Setting{
		{Name: "loops", Value: strconv.Itoa(cfg.Loops)}, {Name: "warm-up", Value: cfg.Warmup.String()}, {Name: "timeout", Value: cfg.Timeout.String()},
		{Name: "lookup", Value: lookup}, {Name: "client id", Value: cfg.ClientID},
	}
	if kind.Paced {
		all = append(all, report.Setting{Name: "libraries", Value: shares(cfg.Libraries)}, report.Setting{Name: "pace", Value: strconv.FormatFloat(cfg.Pace, 'g', -1, 64)},
			report.Setting{Name: "waves every", Value: cfg.Every.String()}, report.Setting{Name: "spread", Value: cfg.Spread.String()})
	} else {
		all = append(all, report.Setting{Name: "ApiVersions", Value: fmt.Sprintf("v%d at most", cfg.APIVersionsVersion)}, report.Setting{Name: "Metadata", Value: fmt.Sprintf("v%d at most", cfg.MetadataVersion)})
	}
	if p.Scenario == "mixed" {
		all = append(all, report.Setting{Name: "mix", Value: shares(cfg.Mix)})
	}
	if len(cfg.Asks) > 0 {
		all = append(all, report.Setting{Name: "asks", Value: fmt.Sprintf("%d of %s", cfg.Draw, shares(cfg.Asks))})
	}
	if cfg.Truth != nil {
		all = append(all, report.Setting{Name: "truth", Value: fmt.Sprintf("%s, at most %s old", strings.Join(p.Truth, " "), cfg.Truth.Bound())})
	}
	if cfg.DialBrokers {
		all = append(all, report.Setting{Name: "dial brokers", Value: "yes"})
	}
	return append(all, report.Setting{Name: "sources", Value: fmt.Sprintf("%d of %s per loop", cfg.SourceCount, cfg.Sources)})
}

func environment(version string) report.Environment {
	e := report.Environment{CPUs: runtime.NumCPU(), Go: runtime.Version(), Version: version}
	e.Host, _ = os.Hostname()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		e.Kernel = strings.Join([]string{unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])}, " ")
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		e.Limits = append(e.Limits, report.Setting{Name: "nofile", Value: strconv.FormatUint(limit.Cur, 10)})
	}
	e.Limits = append(e.Limits, report.Setting{Name: "GOMAXPROCS", Value: strconv.Itoa(runtime.GOMAXPROCS(0))})
	for _, path := range []string{"/proc/sys/net/core/somaxconn", "/proc/sys/net/ipv4/ip_local_port_range"} {
		if raw, err := os.ReadFile(path); err == nil {
			e.Limits = append(e.Limits, report.Setting{Name: filepath.Base(path), Value: strings.Join(strings.Fields(string(raw)), "-")})
		}
	}
	return e
}

func reported(done []events.Done) []report.Event {
	var all []report.Event
	for _, d := range done {
		e := report.Event{At: d.At.Seconds(), Took: d.Took.Seconds(), Name: d.Event.Name, Detail: d.Detail}
		if d.Err != nil {
			e.Error = d.Err.Error()
		}
		all = append(all, e)
	}
	return all
}

// Bounds beyond which a run says nothing about its target.
const (
	lagShare    = 0.2                    // of the reported p99
	lagFloor    = 500 * time.Microsecond // below this lag is no matter
	lateAtLeast = 10                     // operations have to be late
	gapShare    = 0.01                   // of the intended operations were not begun
	localMost   = 0.01                   // of them failed on this machine
)

// void says why a side's figures mean nothing; waited is how many operations began late for want of a client.
func void(s *report.Side, loop string, waited uint64) []string {
	var why []string
	lags := s.Stages[report.StageLag]
	// Of a few hundred operations two late ones are the 99th percentile: they say nothing.
	at := min(99, max(50, 100-100*lateAtLeast/max(1, float64(lags.Count()))))
	latency, lag := s.Latency().At(99), lags.At(at)
	if limit := max(time.Duration(lagShare*float64(latency)), lagFloor); loop == report.LoopOpen && lag > limit {
		text := fmt.Sprintf("%s: the generator began operations late: lag p%.0f %s, at most %s stands (20%% of the latency's p99, 0.5 ms at least): ",
			s.Label(), math.Floor(at), lag.Round(time.Microsecond), limit.Round(time.Microsecond))
		if waited*100 > s.Started {
			text += fmt.Sprintf("%d operations waited for a free client: raise --clients", waited)
		} else {
			text += "lower --rate, or raise --loops or --processes and leave processors to them"
		}
		why = append(why, text)
	}
	if s.Intended > 0 {
		if gap := 1 - float64(s.Started)/float64(s.Intended); gap > gapShare {
			why = append(why, fmt.Sprintf("%s: %.1f%% of the intended operations were never begun: raise --clients, or lower --rate", s.Label(), 100*gap))
		}
		if share := float64(s.Local) / float64(s.Intended); share > localMost {
			why = append(why, fmt.Sprintf("%s: %.1f%% of the operations failed on this machine, not at the target", s.Label(), 100*share))
		}
	}
	return why
}

// warn says what makes a side's figures doubtful; refused is how many connections had to ask for ApiVersions once more.
func warn(s *report.Side, refused uint64) (all []string) {
	if refused > 0 {
		all = append(all, s.Label()+": refuses the version of ApiVersions with error 35; each connection asked once more in a lower one, as clients do (--apiversions-version)")
	}
	latency, poll := s.Latency().At(99), s.Stages[report.StagePoll].At(99)
	if poll > lagFloor && poll > time.Duration(lagShare*float64(latency)) {
		all = append(all, fmt.Sprintf("%s: events waited up to %s (p99) inside the generator, and the latencies contain it: it is near its own ceiling", s.Label(), poll.Round(time.Microsecond)))
	}
	return all
}
