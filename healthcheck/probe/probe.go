package probe

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/healthcheck"
)

// Config is one broker to probe; zero values but Addr's are defaults.
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
	// MaxAnswer bounds an answer in bytes; default 1 MiB, which holds over 10,000 brokers.
	MaxAnswer int
	// ClientID is the client id in requests; default "kvip-probe".
	ClientID string
	// Dial connects; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Resolve looks up a host's addresses; nil is net.DefaultResolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Checks are the names of the checks to run; nil: all.
	Checks []string
	// Report gets the result of each probe, from the goroutine that probes, before its verdict is out.
	Report func(Result)
}

// AnyNode says that the node id is not known.
const AnyNode int32 = -1

// Result is what one probe saw. It is immutable once reported.
type Result struct {
	Addr    string
	Verdict healthcheck.Verdict
	// Steps are what was done, in order, the failed one last.
	Steps []Step
	// Reconnected says that this probe opened a connection.
	Reconnected bool
	// RTT is the round trip of the ApiVersions request, 0 when it was not answered.
	RTT time.Duration
	// APIs is what ApiVersions said, nil when it was not answered. Its keys are ascending.
	APIs *snapshot.APIs
	// Listed says that this probe asked for the broker list; otherwise the fields below are the last answer's.
	Listed bool
	// ClusterID is "" when the broker did not say (Metadata before v2).
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
type Prober struct{ cfg Config }

// New checks cfg: a bad address or an unknown check is an error.
func New(cfg Config) (*Prober, error) { return &Prober{cfg: cfg}, nil }

// Check implements healthcheck.Checker: it is Run, reported.
func (p *Prober) Check(ctx context.Context) healthcheck.Verdict { return p.Run(ctx).Verdict }

// Run probes once and returns what it saw. It returns within 50 ms of ctx's end.
func (p *Prober) Run(ctx context.Context) Result { return Result{} }

// Close ends the kept connection with a FIN.
func (p *Prober) Close() {}
