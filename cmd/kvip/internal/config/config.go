// Package config reads kvip.yaml: its structure, its defaults, and everything that can be wrong with it. All faults of a
// file are found in one go, each with its place and its fix (see Fault).
package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/discovery/provider"
	"github.com/kvip/kvip/protocol/front"
)

// Config is one kvip.yaml. Keys that a file leaves out have the value of Defaults.
type Config struct {
	Log   Log   `yaml:"log"`
	Admin Admin `yaml:"admin"`
	// StateDir keeps the last known good pools and snapshots for a cold start.
	StateDir string `yaml:"state_dir"`
	// Consul is the agent that the pools' consul discovery asks.
	Consul provider.ConsulSettings `yaml:"consul"`
	// Register makes kvip itself a service of that agent.
	Register provider.RegisterConfig `yaml:"register"`
	Drain    Drain                   `yaml:"drain"`
	Pools    []Pool                  `yaml:"pools"`
	VIPs     []VIP                   `yaml:"vips"`
}

// Log says what is logged, to standard error, and how.
type Log struct {
	// Level is the least severe level that is logged, one of logLevels.
	Level string `yaml:"level"`
	// Format is json or console.
	Format string `yaml:"format"`
}

// Admin is the HTTP listener for operators.
type Admin struct {
	// Listen is host:port; loopback unless told otherwise.
	Listen string `yaml:"listen"`
	// Pprof serves /debug/pprof too.
	Pprof bool `yaml:"pprof"`
}

// Drain is how a kvip leaves.
type Drain struct {
	// Grace is how long everything is served as before after /readyz has turned red, so that whoever watches it (a load
	// balancer, keepalived) has moved traffic away before newcomers are reset.
	Grace time.Duration `yaml:"grace"`
	// Timeout bounds what follows: answering what is in flight, then closing quiet connections spread over this time.
	Timeout time.Duration `yaml:"timeout"`
}

// Pool is one Kafka cluster as kvip finds and watches it.
type Pool struct {
	// Name is part of metrics, file names and logs.
	Name string `yaml:"name"`
	// ClusterID pins the cluster; empty: what most members say at the first start, kept in state_dir from then on.
	ClusterID string `yaml:"cluster_id"`
	// Standby keeps the pool warm although no VIP uses it.
	Standby   bool      `yaml:"standby"`
	Discovery Discovery `yaml:"discovery"`
	Health    Health    `yaml:"health"`
	Balancer  Balancer  `yaml:"balancer"`
	Outliers  Outliers  `yaml:"outliers"`
	Metadata  Metadata  `yaml:"metadata"`
	// DialAllow are networks that kvip may dial besides the registered addresses: brokers that Metadata lists and no
	// registry does are asked for their versions only if they are in one of them.
	DialAllow []netip.Prefix `yaml:"dial_allow"`
	// MaxUpstream is the most connections for forwarded requests to one broker.
	MaxUpstream int `yaml:"max_upstream"`
}

// Health is how members are probed.
type Health struct {
	// Interval is from the start of one probe to the start of the next, Timeout how long one may take.
	Interval time.Duration `yaml:"interval"`
	Timeout  time.Duration `yaml:"timeout"`
	// Rise and Fall are how many probes in a row bring a member in or out.
	Rise int `yaml:"rise"`
	Fall int `yaml:"fall"`
}

// Balancer picks the member that heads a broker list or gets a forwarded request.
type Balancer struct {
	// Policy is what forwards go by, Heads what the first broker of a list goes by: the policy, if it is not named, or
	// round-robin for the ring (docs/adr/0005).
	Policy string `yaml:"policy"`
	Heads  string `yaml:"heads"`
	// Zone is the rack whose members come first as long as they carry the load.
	Zone string `yaml:"zone"`
	// SlowStart is how long the share of forwards of a member that comes back takes to grow; 0: no time.
	SlowStart time.Duration `yaml:"slow_start"`
}

// settle fills in what the file leaves open.
func (b *Balancer) settle() { b.Heads = backends.HeadsOf(b.Policy, b.Heads) }

// Outliers says which members are ejected because they do much worse than the others.
type Outliers struct {
	// Method is iqr (beyond Q3 + 1.5 IQR), stddev (beyond the mean + Deviations standard deviations) or off. Pools of fewer
	// than 5 go by three times the median instead.
	Method     string  `yaml:"method"`
	Deviations float64 `yaml:"deviations"`
	// MinSamples is how many probes a member is judged by at least, Floor the latency below which nobody is an outlier.
	MinSamples int           `yaml:"min_samples"`
	Floor      time.Duration `yaml:"floor"`
	// Eject is how long a first ejection lasts, each further one as much longer, up to MaxEject.
	Eject    time.Duration `yaml:"eject"`
	MaxEject time.Duration `yaml:"max_eject"`
}

// Metadata is how old local answers may be.
type Metadata struct {
	// MaxAge is the age at which a snapshot is refreshed while a broker answers, MaxStale the age at which the last
	// good one is given up when none does.
	MaxAge   time.Duration `yaml:"max_age"`
	MaxStale time.Duration `yaml:"max_stale"`
}

// VIP is one address that clients bootstrap from.
type VIP struct {
	// Name is part of metrics and logs.
	Name string `yaml:"name"`
	// Listen is host:port to bind.
	Listen string `yaml:"listen"`
	// SharePort lets several kvip processes listen on the same port; otherwise a port that another one has is refused.
	SharePort bool `yaml:"share_port"`
	// Pool is the name of the pool behind it.
	Pool string `yaml:"pool"`
	// Addresses are host:port as clients write them; a broker that advertises one of them is refused.
	Addresses []string `yaml:"addresses"`
	// Lookup is snapshot (answered by kvip) or forward (each lookup goes to a broker that the policy picks).
	Lookup  string  `yaml:"lookup"`
	Forward Forward `yaml:"forward"`
	Limits  Limits  `yaml:"limits"`
}

// Forward says which requests may go to a broker besides the ones that always do.
type Forward struct {
	// Writes lets requests through that change the cluster (create, delete, alter, elect).
	Writes bool `yaml:"writes"`
}

// Limits bound what one VIP's connections may hold.
type Limits struct {
	// Connections is the most that are open at once; 0: the VIP's share of the descriptor limit.
	Connections int `yaml:"connections"`
	// FirstByte is how long a new connection may stay silent, Frame how long one request may take to arrive, Idle how
	// long a connection may rest between requests, Stalled how long a client may take none of an answer.
	FirstByte time.Duration `yaml:"first_byte"`
	Frame     time.Duration `yaml:"frame"`
	Idle      time.Duration `yaml:"idle"`
	Stalled   time.Duration `yaml:"stalled"`
	// Hold is how long a request waits for the first snapshot after a cold start.
	Hold time.Duration `yaml:"hold"`
	// FrameBytes is the largest request; InboundBytes what a client may send ahead while a request of it waits,
	// OutboundBytes what may wait for a client that does not read.
	FrameBytes   Bytes `yaml:"frame_bytes"`
	InboundBytes Bytes `yaml:"inbound_bytes"`
	// BufferedBytes is what all clients of the VIP together may have sent that cannot be served yet.
	BufferedBytes Bytes `yaml:"buffered_bytes"`
	OutboundBytes Bytes `yaml:"outbound_bytes"`
	// Tags is the most tagged fields in one section of a request (KIP-482).
	Tags int `yaml:"tags"`
}

// Bytes is a size in bytes, written as a number or with KiB, MiB or GiB.
type Bytes int

var byteUnits = []struct {
	suffix string
	size   Bytes
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

// UnmarshalText reads "2MiB", "65536".
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 31)
		if err != nil || Bytes(n) > (1<<31-1)/u.size {
			break
		}
		*b = Bytes(n) * u.size
		return nil
	}
	return fmt.Errorf("%s is not a size", quote(s))
}

// MarshalText writes the largest unit that divides the size.
func (b Bytes) MarshalText() ([]byte, error) {
	for _, u := range byteUnits {
		if b >= u.size && b%u.size == 0 && u.suffix != "B" {
			return []byte(strconv.Itoa(int(b/u.size)) + u.suffix), nil
		}
	}
	return []byte(strconv.Itoa(int(b))), nil
}

// Defaults is what a file that sets nothing gets, without pools and VIPs.
func Defaults() Config {
	return Config{
		Log:      Log{Level: "info", Format: "json"},
		Admin:    Admin{Listen: "127.0.0.1:9644"},
		StateDir: "/var/lib/kvip",
		Consul:   provider.ConsulSettings{Address: "127.0.0.1:8500"},
		Register: provider.DefaultRegister(),
		Drain:    Drain{Timeout: 10 * time.Second},
	}
}

// DefaultPool is a pool that sets nothing; name and discovery have no default.
func DefaultPool() Pool {
	d := backends.DefaultConfig()
	return Pool{
		Health:      Health(d.Health),
		Balancer:    Balancer{Policy: d.Policy, SlowStart: d.SlowStart},
		Outliers:    Outliers(d.Outliers),
		Metadata:    Metadata{MaxAge: d.MaxAge, MaxStale: d.MaxStale},
		MaxUpstream: d.MaxUpstream,
	}
}

// DefaultVIP is a VIP that sets nothing; name, listen and pool have no default.
func DefaultVIP() VIP {
	d := front.DefaultLimits()
	return VIP{
		Lookup: "snapshot",
		Limits: Limits{
			FirstByte: d.FirstByte, Frame: d.Frame, Idle: d.Idle, Stalled: d.Stalled, Hold: d.Hold,
			FrameBytes: Bytes(d.FrameBytes), InboundBytes: Bytes(d.InboundBytes), OutboundBytes: Bytes(d.OutboundBytes), BufferedBytes: Bytes(d.BufferedBytes), Tags: d.Tags,
		},
	}
}
