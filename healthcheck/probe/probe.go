package probe

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/healthcheck"
)

// Config is one broker to probe; zero values but Addr's and NodeID's are defaults.
type Config struct {
	// Addr is the registered host:port.
	Addr string
	// NodeID is what the registry says, AnyNode when it does not.
	NodeID int32
	// ClusterID returns the pool's cluster id, "" while it is unknown; nil: unknown. It is called in each probe.
	ClusterID func() string
	// MetadataEvery returns at every which probe the broker list is asked for; nil or below 2: at each. A new
	// connection and a broker that did not pass are always asked.
	MetadataEvery func() int
	// MaxAnswer bounds an answer in bytes; default 1 MiB, which holds some 10,000 brokers.
	MaxAnswer int
	// ClientID is the client id in requests; default "kvip-probe".
	ClientID string
	// Dial connects; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Resolve looks up a host's addresses; nil is a Resolver of the prober's own. Probers of one pool may share one.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Lists shares what brokers say with other probes of the same cluster; nil: each keeps its own.
	Lists *Lists
	// Checks are the names of the checks to run; nil: all.
	Checks []string
	// Report gets the result of each Check, from the goroutine that probes, before its verdict is out; it has no Steps.
	Report func(Result)
}

// AnyNode says that the node id is not known.
const AnyNode int32 = -1

// Result is what one probe saw. It is immutable once reported, and shares memory with results before and after it.
type Result struct {
	Addr    string
	Verdict healthcheck.Verdict
	// Steps are what was done, in order, the failed one last.
	Steps []Step
	// Reconnected says that this probe opened a connection.
	Reconnected bool
	// RTT is the round trip of the ApiVersions request, 0 when it was not answered.
	RTT time.Duration
	// APIs is what ApiVersions said, nil when it was not answered. It is the same pointer as long as the answer is the
	// same bytes.
	APIs *snapshot.APIs
	// Listed says that this probe got a broker list; otherwise the fields below are the last list's on this connection.
	Listed bool
	// ClusterID is "" when the broker did not say (Metadata before v2, or a broker that is starting).
	ClusterID string
	// NodeID is the broker's own node id, as its list has it, AnyNode when it is not listed.
	NodeID int32
	// ControllerID is what Metadata says, -1 when nothing.
	ControllerID int32
	// Brokers are what Metadata lists, ascending by node id.
	Brokers []kmsg.MetadataResponseBroker
}

// Step is one check of a probe.
type Step struct {
	Name   string
	Took   time.Duration
	Reason healthcheck.Reason
	// Detail says what was seen, whether it passed or not.
	Detail string
}

// Prober probes one broker over one kept connection. It is a healthcheck.Checker.
type Prober struct {
	cfg    Config
	host   string
	port   uint16
	checks []namedCheck

	conn    *conn  // nil when none is open
	table   *table // the last ApiVersions answer, nil before it
	version int16  // the ApiVersions version that the broker answered, -1 before it did
	passed  bool   // the last probe passed
	skipped int    // probes since the broker list was last asked for
}

// visit is one probe under way.
type visit struct {
	*Prober
	res *Result
	// terse says that nobody reads what passed: saying it costs as much as a check.
	terse bool
}

// ok is the outcome of a check that passed, and what there is to say about it.
func (v *visit) ok(detail func() string) (healthcheck.Reason, string) {
	if v.terse {
		return healthcheck.OK, ""
	}
	return healthcheck.OK, detail()
}

// New checks cfg: a bad address or an unknown check is an error. It opens nothing.
func New(cfg Config) (*Prober, error) {
	host, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("probe: %q is not host:port", cfg.Addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" {
		return nil, fmt.Errorf("probe: %q is not host:port with a port from 1 to 65535", cfg.Addr)
	}
	checks, err := plan(cfg.Checks)
	if err != nil {
		return nil, err
	}
	cfg.MaxAnswer = cmp.Or(max(cfg.MaxAnswer, 0), 1<<20)
	cfg.ClientID = cmp.Or(cfg.ClientID, "kvip-probe")
	if cfg.ClusterID == nil {
		cfg.ClusterID = func() string { return "" }
	}
	if cfg.MetadataEvery == nil {
		cfg.MetadataEvery = func() int { return 1 }
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	if cfg.Resolve == nil {
		cfg.Resolve = NewResolver(nil).Lookup
	}
	return &Prober{cfg: cfg, host: host, port: uint16(n), checks: checks, version: -1}, nil
}

// Check implements healthcheck.Checker: it is Run, reported, without its steps.
func (p *Prober) Check(ctx context.Context) healthcheck.Verdict {
	r := p.probe(ctx, true)
	if p.cfg.Report != nil {
		p.cfg.Report(r)
	}
	return r.Verdict
}

// Run probes once and returns what it saw, within 50 ms of ctx's end. It is not for concurrent callers.
func (p *Prober) Run(ctx context.Context) Result { return p.probe(ctx, false) }

func (p *Prober) probe(ctx context.Context, terse bool) Result {
	begun := time.Now()
	kept := p.conn != nil
	r, first := p.run(ctx, terse)
	if kept && first && r.Verdict.Reason == ReasonClosed {
		// The broker, or a device between, has closed the idle connection; that says nothing about the broker.
		r, _ = p.run(ctx, terse)
	}
	r.Verdict.At = time.Now()
	r.Verdict.Took = r.Verdict.At.Sub(begun)
	p.passed = r.Verdict.Passed()
	if p.conn != nil {
		p.conn.release()
	}
	return r
}

// run does the checks once. first says that the first request went unanswered.
func (p *Prober) run(ctx context.Context, terse bool) (r Result, first bool) {
	r = Result{Addr: p.cfg.Addr, NodeID: AnyNode, ControllerID: -1}
	v := &visit{Prober: p, res: &r, terse: terse}
	for _, c := range p.checks {
		var begun time.Time
		if !terse {
			begun = time.Now()
		}
		reason, detail := c.Run(ctx, v)
		if !terse {
			r.Steps = append(r.Steps, Step{Name: c.name, Took: time.Since(begun), Reason: reason, Detail: detail})
		}
		if reason == healthcheck.OK {
			continue
		}
		r.Verdict.Reason, r.Verdict.Detail = reason, detail
		switch reason {
		case ReasonTimeout, ReasonClosed, ReasonBadAnswer:
			p.Close() // whatever still comes on it is no answer to the next probe
		}
		break
	}
	return r, r.RTT == 0
}

// Close ends the kept connection, with a FIN as long as nothing unread is on it.
func (p *Prober) Close() {
	if p.conn != nil {
		p.conn.release()
		_ = p.conn.Close()
		p.conn = nil
	}
}
