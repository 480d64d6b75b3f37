// Package report is the result of a load test as data ([Run]), and everything that is made of it afterwards: the table on
// the terminal, JSON, .hgrm files, one HTML page that works offline, the sum of several generators' runs ([Merge]), two
// runs side by side ([Compare]), and assertions. It drives no load and opens no connection.
package report

import (
	"slices"
	"strings"
	"time"
)

// Schema is the version of the JSON form of [Run]. It grows when a field changes its meaning or goes away, not when one is
// added.
const Schema = 1

// Run is what one run found. A generator fills it: one Side per target, in the order of the command line. Times within the
// run are seconds since Start.
type Run struct {
	Schema      int         `json:"schema"`
	Title       string      `json:"title,omitempty"` // what was asked, for headings; made up from the sides when empty
	Scenario    string      `json:"scenario"`
	Loop        string      `json:"loop"`    // LoopOpen or LoopClosed
	Arrival     string      `json:"arrival"` // schedule of an open loop, as it was given: "poisson:1000/s"
	Seed        uint64      `json:"seed"`
	Start       time.Time   `json:"start"`         // of the measurement, after any warm-up
	Duration    float64     `json:"duration"`      // of the measurement in seconds, as it was
	Cut         string      `json:"cut,omitempty"` // why it ended before its time: "interrupted"; empty: it did not
	Clients     int         `json:"clients"`       // virtual clients
	Generators  int         `json:"generators"`
	Settings    []Setting   `json:"settings"` // every setting in force, in the order to list them
	Environment Environment `json:"environment"`
	Sides       []Side      `json:"sides"`
	// Calibration is the same load on a server that does nothing (the floor): what the generator and this machine add.
	Calibration *Side   `json:"calibration,omitempty"`
	Events      []Event `json:"events,omitempty"`
	Verdict     Verdict `json:"verdict"`
}

// How operations begin.
const (
	LoopOpen   = "open"   // on a schedule; latency counts from the intended start
	LoopClosed = "closed" // when the client's last one has ended
)

// Setting is one setting in force.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Environment is what the generator ran on.
type Environment struct {
	Host     string    `json:"host,omitempty"`
	Kernel   string    `json:"kernel,omitempty"` // "Linux 6.1.0 x86_64"
	CPUs     int       `json:"cpus,omitempty"`
	Go       string    `json:"go,omitempty"`
	Version  string    `json:"version,omitempty"` // of the load test: git describe
	Limits   []Setting `json:"limits,omitempty"`  // in force: nofile, ip_local_port_range, somaxconn...
	Warnings []string  `json:"warnings,omitempty"`
}

// Names of stages with a meaning of their own. Stages may have other names, too.
const (
	StageOperation   = "operation"    // the whole operation; open loop: from its intended start
	StageConnect     = "connect"      // TCP connection (and TLS)
	StageAPIVersions = "api_versions" // request to answer
	StageMetadata    = "metadata"     // request to answer
	StageLag         = "lag"          // the generator's own: actual minus intended start
	StagePoll        = "poll"         // the generator's own: how long events may have waited for it
)

var stageOrder = []string{StageOperation, StageConnect, StageAPIVersions, StageMetadata, StageLag, StagePoll}

// Side is what one target did.
type Side struct {
	Target  string  `json:"target"`         // host:port
	Name    string  `json:"name,omitempty"` // what to call it in headings; Target when empty
	Elapsed float64 `json:"elapsed"`        // seconds during which this target was loaded
	Counts
	Bytes uint64 `json:"bytes"` // of answers
	// PartitionErrors counts answers that name a partition with an error code: the truth while brokers are down.
	PartitionErrors uint64 `json:"partition_errors,omitempty"`
	// CoordinatorErrors counts answers that name no coordinator yet: likewise.
	CoordinatorErrors uint64               `json:"coordinator_errors,omitempty"`
	Stages            map[string]Histogram `json:"stages"` // whole run; nanoseconds, 3 digits
	Failures          []Failure            `json:"failures,omitempty"`
	Windows           []Window             `json:"windows,omitempty"` // by time
	Rounds            []Round              `json:"rounds,omitempty"`  // of an interleaved run, by time
	CPU               *CPU                 `json:"cpu,omitempty"`
	// Kernel is by how much the machine's counters grew while this target was loaded: ListenOverflows, ListenDrops,
	// TCPSynRetrans... from /proc/net/netstat and snmp of the generator's machine (the target's, too, when it is the same).
	Kernel map[string]uint64 `json:"kernel,omitempty"`
}

// Counts are operations by what became of them. In a whole run Intended minus Started are those that the generator did not
// begin: for want of a free client (which Local counts as no_client), or because it was cut short. Started are Done, Failed,
// those of Local that were begun, and, when it was cut short, those still open then.
type Counts struct {
	Intended uint64 `json:"intended"`     // that the schedule held; closed loop: Started
	Started  uint64 `json:"started"`      // begun, on time or late
	Done     uint64 `json:"done"`         // every answer came and was right
	Failed   uint64 `json:"failed"`       // by the target
	Local    uint64 `json:"failed_local"` // by this machine: ports, descriptors, memory, no client free in time
}

// Failure is one class of failures, named as package failure does.
type Failure struct {
	Class string `json:"class"`
	Local bool   `json:"local,omitempty"` // this machine's, not the target's
	Count uint64 `json:"count"`           // operations
	// Idle counts kept connections that ended this way while nothing was asked on them; no operation failed.
	Idle     uint64   `json:"idle,omitempty"`
	Examples []string `json:"examples,omitempty"` // what was seen, a few of them
}

// Window is a slice of time, a second by habit. Intended and started operations are counted in the window in which they
// should have begun, the others and their latency in that in which they ended.
type Window struct {
	At      float64 `json:"t"` // its begin
	Seconds float64 `json:"s"` // its length
	Counts
	Classes map[string]uint64 `json:"classes,omitempty"` // Failed and Local by class
	Open    int               `json:"open,omitempty"`    // connections open at its end
	Latency Histogram         `json:"latency"`           // StageOperation, 2 digits
	CPU     float64           `json:"cpu,omitempty"`     // seconds of the target's processor time
	Kernel  map[string]uint64 `json:"kernel,omitempty"`  // as in Side
}

// Round is one turn of a target in an interleaved run.
type Round struct {
	At      float64 `json:"t"`
	Seconds float64 `json:"s"`
	Counts
	Latency Histogram `json:"latency"` // StageOperation, 3 digits
	CPU     float64   `json:"cpu,omitempty"`
}

// CPU is what a target's process used while it was loaded, user and system time of all its threads.
type CPU struct {
	PID     int     `json:"pid"`
	Seconds float64 `json:"seconds"`
}

// Event is something that was done to the target, or happened, during the run.
type Event struct {
	At     float64 `json:"t"` // when it began
	Took   float64 `json:"took,omitempty"`
	Name   string  `json:"name"`             // short: "kill broker 2"
	Detail string  `json:"detail,omitempty"` // command, output
	Error  string  `json:"error,omitempty"`  // why it did not work
}

// Verdict says whether the figures mean anything, and whether they are good enough.
type Verdict struct {
	// Void lists why the run says nothing about the target: the generator lagged, this machine ran out of something. Empty:
	// the run stands.
	Void       []string    `json:"void,omitempty"`
	Assertions []Assertion `json:"assertions,omitempty"`
}

// Good says that the run stands and every assertion holds.
func (v Verdict) Good() bool {
	return len(v.Void) == 0 && !slices.ContainsFunc(v.Assertions, func(a Assertion) bool { return !a.Holds })
}

// Assertion is one condition on a side, and what became of it.
type Assertion struct {
	Text   string `json:"text"` // "p99<5ms"
	Target string `json:"target"`
	Holds  bool   `json:"holds"`
	Found  string `json:"found"` // "7.31ms"
}

// Label is what to call the side in headings.
func (s *Side) Label() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Target
}

// Rate is operations done per second.
func (s *Side) Rate() float64 { return perSecond(s.Done, s.Elapsed) }

// CPUPerOperation is the target's processor time per operation done; ok is false when it is not known.
func (s *Side) CPUPerOperation() (d time.Duration, ok bool) {
	if s.CPU == nil || s.Done == 0 {
		return 0, false
	}
	return time.Duration(s.CPU.Seconds / float64(s.Done) * float64(time.Second)), true
}

// Latency is the histogram of whole operations; empty when there was none.
func (s *Side) Latency() Histogram { return s.Stages[StageOperation] }

// StageNames lists the stages that hold something: those with a meaning of their own first, then by name.
func (s *Side) StageNames() []string {
	var names []string
	for name, h := range s.Stages {
		if h.Count() > 0 {
			names = append(names, name)
		}
	}
	rank := func(name string) int {
		if i := slices.Index(stageOrder, name); i >= 0 {
			return i
		}
		return len(stageOrder)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names
}

func perSecond(n uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(n) / seconds
}

func (c *Counts) add(o Counts) {
	c.Intended += o.Intended
	c.Started += o.Started
	c.Done += o.Done
	c.Failed += o.Failed
	c.Local += o.Local
}
