// Package loadtest says whether a bootstrap path holds: it drives virtual Kafka clients against any address that speaks
// the protocol and checks what they are told. It imports no other package of the project: a fault in the project's own
// codec must not hide itself.
package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/events"
	"github.com/kvip/kvip/loadtest/report"
	"github.com/kvip/kvip/loadtest/scenario"
)

// Drive is `kvip loadtest`: flags for kong, and Run.
type Drive struct {
	Target    string `help:"Address to load: anything that speaks Kafka." required:"" placeholder:"HOST:PORT"`
	Vs        string `help:"A second address: both are loaded in turns, A-B-A-B, and compared." placeholder:"HOST:PORT"`
	Scenario  string `help:"What clients do; the names are above." default:"kept"`
	YesReally bool   `help:"Allow a target, and advertised brokers, that are not on this machine's loopback."`

	Rate      string        `help:"Operations per second, whatever the target does: 1000, or steps as 100@10s,100-5000@30s, or trace:FILE. Default: 1000." group:"Load"`
	Arrival   string        `help:"How operations are spread around the rate: poisson or regular." default:"poisson" enum:"poisson,regular" group:"Load"`
	Closed    bool          `help:"Closed loop instead of a rate: each client asks again once it is answered. Finds a ceiling; its latencies flatter." group:"Load"`
	Clients   int           `help:"Virtual clients, over all processes; 0: as many as the rate needs." default:"0" group:"Load"`
	Loops     int           `help:"Threads that generate load, in each process. Where it is permitted (CAP_SYS_NICE) they run at nice -20, unless they were started with another." default:"1" group:"Load"`
	Processes int           `help:"Processes that generate load together: each may have as many connections as 'ulimit -n' says." default:"1" group:"Load"`
	Warmup    time.Duration `help:"Load before the measurement begins." default:"1s" group:"Load"`
	Duration  time.Duration `help:"Length of the measurement; with --vs of each turn. Steps and traces have their own." default:"10s" group:"Load"`
	Rounds    int           `help:"Turns of each target with --vs." default:"3" group:"Load"`
	Timeout   time.Duration `help:"Time that one operation may take." default:"5s" group:"Load"`
	Seed      uint64        `help:"Of everything that is left to chance." default:"1" group:"Load"`

	Topic       []string      `help:"Topics to look up; none: all topics." group:"Clients"`
	BrokersOnly bool          `help:"Look up no topic, only brokers." group:"Clients"`
	TopicErrors bool          `help:"Errors of topics are no failures: for topics that need not be there." group:"Clients"`
	Asks        string        `help:"storm: what bootstraps ask for after ApiVersions, by weight: metadata-all, metadata-one (of --topic), metadata-brokers, describe-cluster, find-coordinator, with @VERSION behind it if need be. None: one Metadata request." placeholder:"metadata-all=2,find-coordinator@0=1" group:"Clients"`
	Draw        int           `help:"How many of --asks each bootstrap sends." default:"2" group:"Clients"`
	ClientID    string        `help:"Client id that requests carry." default:"kvip-loadtest" group:"Clients"`
	APIVersions int16         `name:"apiversions-version" help:"Version of the ApiVersions request, 0-5; a target that refuses it is asked again in the version that it names, as clients do." default:"4" group:"Clients"`
	Metadata    int16         `name:"metadata-version" help:"Newest version of the Metadata request, 0-13; a target that serves less is asked in less." default:"12" group:"Clients"`
	ClusterID   string        `help:"Cluster id that every answer must name; empty: a connection's first answer decides." group:"Clients"`
	Truth       []string      `help:"Brokers to ask directly, ten times a second, meanwhile: an answer of the target that says what none of them said is untrue, a failure of its own." placeholder:"HOST:PORT" group:"Clients"`
	TruthBound  time.Duration `help:"How old an answer may be by the brokers' word." default:"3s" group:"Clients"`
	EpochGrace  time.Duration `help:"How long after one client was told of a leader epoch another one may be told an older one: for a target that is several brokers, which learn one after the other." default:"0s" group:"Clients"`
	DialBrokers bool          `help:"storm: connect to every advertised broker, too." group:"Clients"`
	Library     string        `help:"steady, reconnect, rebootstrap: who the clients are, with weights." placeholder:"java=4,kafka-go" group:"Clients"`
	Mix         string        `help:"mixed: scenarios with weights." placeholder:"kept=8,storm=4" group:"Clients"`
	Pace        float64       `help:"steady: how much faster than real time goes by." default:"1" group:"Clients"`
	Every       time.Duration `help:"reconnect, rebootstrap: from one wave to the next." default:"10s" group:"Clients"`
	Spread      time.Duration `help:"rebootstrap: within which a wave's clients come." default:"1s" group:"Clients"`
	ReadRate    int           `help:"slowreader: bytes per second." default:"65536" group:"Clients"`
	Sources     string        `help:"Addresses that clients of a loopback target come from." default:"127.64.0.0/10" group:"Clients"`
	SourceCount int           `help:"How many of them each loop uses; 0: the kernel chooses one." default:"64" group:"Clients"`

	PID       int    `name:"pid" help:"The target's process: its processor time per operation is reported." group:"Report"`
	VsPID     int    `name:"vs-pid" help:"The second target's process." group:"Report"`
	Calibrate bool   `help:"Run the same load on a server that does nothing first, for 30 s at most where it is steady, and report it beside: what generator and machine add." group:"Report"`
	Events    string `help:"File of what to do to the target meanwhile." type:"existingfile" group:"Report"`
	Assert    string `help:"What must hold for --target, for the exit code: p99<5ms,failed=0,rate>=1000. With --vs the second target is not judged but compared with: p99_ratio<=1.1." placeholder:"CONDITIONS" group:"Report"`
	JSON      string `name:"json" help:"File for the result: compare and merge read it." type:"path" group:"Report"`
	HTML      string `name:"html" help:"File for the report as a page." type:"path" group:"Report"`
	HGRM      string `name:"hgrm" help:"File for the latency's percentile distribution." type:"path" group:"Report"`
	Title     string `help:"Heading of the report." group:"Report"`

	// Of a process that another one has started.
	Part  int    `hidden:"" default:"-1"`
	Floor string `hidden:""`
	Parts int    `hidden:"" default:"1"`

	// Self is the command line that runs this command again, without its flags: other processes are started with it.
	Self []string `kong:"-"`
	// Args are the flags as they were given.
	Args []string `kong:"-"`
	// Version is the program's, for reports.
	Version string `kong:"-"`
}

// Overview is what `kvip loadtest --help` says: what is needed most.
const Overview = `kvip loadtest --target HOST:PORT drives load. What is needed most, of all that kvip loadtest drive --help lists:

    --scenario kept           what clients do, see below
    --rate 1000               operations per second, or steps: 100@10s,100-5000@30s
    --duration 10s            length of the measurement
    --closed --clients 64     find the ceiling instead
    --vs HOST:PORT            load two targets in turns, and compare
    --pid PID                 the target's processor time per operation
    --calibrate               what generator and machine add
    --assert CONDITIONS       exit code: 'p99<5ms,failed=0' of --target; beside --vs 'p99_ratio<=1.1'
    --events FILE             what to do to the target meanwhile
    --html FILE, --json FILE  the result as a page, as data
    --processes 7             more than one process's connections

`

// Scenarios lists the scenarios.
func Scenarios() string {
	text := "Scenarios:\n"
	for _, name := range scenario.Names() {
		text += fmt.Sprintf("\n    %-12s %s", name, scenario.Scenarios[name].About)
	}
	return text
}

// Help is what `kvip loadtest drive --help` says above the flags.
func (d *Drive) Help() string {
	return Scenarios() + "\n\nLibraries: " + strings.Join(scenario.LibraryNames(), ", ") + "."
}

// Usage is an error of the settings: nothing was begun.
type Usage struct{ error }

// Unwrap returns what is wrong.
func (u Usage) Unwrap() error { return u.error }

// Run drives the load and prints what came of it. Its error says what was wrong with the settings, that the figures mean
// nothing, that a condition does not hold or, where no condition is given, that operations failed.
func (d *Drive) Run(ctx context.Context, stdout, stderr io.Writer) error {
	asserts, err := report.ParseAssertions(d.Assert)
	if err != nil {
		return Usage{err}
	}
	var todo *events.File
	if d.Events != "" {
		if todo, err = events.Load(d.Events); err != nil {
			return Usage{err}
		}
	}
	p, err := d.plan(ctx)
	if err != nil {
		return Usage{err}
	}
	defer spareProcessor(d.Loops)()
	if d.Part >= 0 {
		return p.part(ctx, os.Stdin, stdout)
	}
	if d.Calibrate && d.Floor == "" {
		stop, err := p.startFloor(ctx)
		if err != nil {
			return fmt.Errorf("calibration: %w", err)
		}
		defer stop()
	}
	line := newLive(stderr)
	p.show = line.show
	drive := p.alone
	if d.Processes > 1 {
		drive = p.together
	}
	run, err := drive(ctx, todo)
	line.clear()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("interrupted before the measurement: %w", err)
	}
	if err != nil {
		return err
	}
	asserts.Evaluate(run)
	if err := run.WriteText(stdout); err != nil {
		return err
	}
	return errors.Join(d.write(run), judge(run, len(asserts) > 0))
}

// write writes the files that were asked for.
func (d *Drive) write(run *report.Run) error {
	var faults []error
	for _, f := range []struct {
		path  string
		write func(io.Writer) error
	}{{d.JSON, run.WriteJSON}, {d.HTML, run.WriteHTML}, {d.HGRM, run.Sides[0].Latency().WriteHGRM}} {
		if f.path != "" {
			faults = append(faults, report.WriteFile(f.path, f.write))
		}
	}
	return errors.Join(faults...)
}

// judge turns the verdict into the command's error.
func judge(run *report.Run, asserted bool) error {
	var faults []error
	if run.Cut != "" {
		faults = append(faults, fmt.Errorf("the run was cut short: %s", run.Cut))
	}
	if n := len(run.Verdict.Void); n > 0 {
		faults = append(faults, fmt.Errorf("the run is VOID: its figures say nothing about the target: %s", run.Verdict.Void[0]))
	}
	for _, a := range run.Verdict.Assertions {
		if !a.Holds {
			faults = append(faults, fmt.Errorf("%s does not hold for %s: %s", a.Text, a.Target, a.Found))
		}
	}
	for _, e := range run.Events {
		if e.Error != "" {
			faults = append(faults, fmt.Errorf("event %q at %.1fs: %s", e.Name, e.At, e.Error))
		}
	}
	if asserted {
		return errors.Join(faults...)
	}
	for _, s := range run.Sides {
		if n := s.Failed + s.Local; n > 0 {
			faults = append(faults, fmt.Errorf("%s: %d of %d operations failed", s.Label(), n, s.Intended))
		}
		if s.Intended == 0 {
			faults = append(faults, fmt.Errorf("%s: no operation was due within the measurement: make it longer, or the clients more", s.Label()))
		}
	}
	return errors.Join(faults...)
}
