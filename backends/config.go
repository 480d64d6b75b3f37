package backends

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/backends/upstream"
	"github.com/kvip/kvip/healthcheck"
)

// Config is one pool as the configuration describes it. Zero durations and counts mean the defaults of DefaultConfig.
type Config struct {
	// Name is the pool's name: a metric label and the name of its file in StateDir.
	Name string
	// ClusterID pins the cluster; empty: what StateDir remembers, else what most members say at the first start.
	ClusterID string
	// Standby says that the pool is kept warm with no VIP in front of it.
	Standby bool
	Health  Health
	// Policy is the key of policy.Policies that forwards go by; Heads the one by which a broker heads a list (HeadsOf).
	Policy, Heads string
	// Zone is the rack whose members come first as long as they carry the load; "": none does.
	Zone string
	// SlowStart is how long the share of forwards of a member that comes back takes to grow; negative: no time.
	SlowStart time.Duration
	Outliers  Outliers
	// MaxAge is how old an answer may be while a broker answers; MaxStale is how old the last good one may get when none
	// does, after which nothing is answered.
	MaxAge, MaxStale time.Duration
	// ShrinkHold is how long an unexplained shrink of the registry's list is held back.
	ShrinkHold time.Duration
	// StateDir holds <Name>.json, the last known good pool and snapshot; empty: nothing is kept.
	StateDir string
	// DialAllow are the networks in which kvip may dial brokers that no registry lists, to learn which API versions they
	// speak. Nothing is ever forwarded to those.
	DialAllow []netip.Prefix
	// VIPAddresses are host:port by which clients reach this pool's VIPs: no broker may advertise one of them.
	VIPAddresses []string
	// MaxUpstream bounds the connections to one broker that carry forwarded requests, one in flight on each.
	MaxUpstream int
	// MaxAnswer bounds one answer of a broker in bytes, to a refresh or a forward: 64 MiB hold a million partitions.
	MaxAnswer int
}

// Health says how members are probed.
type Health struct {
	// Interval is the time between two probes of a member, Timeout how long one may take.
	Interval, Timeout time.Duration
	// Rise is how many probes in a row a member has to pass to come back, Fall how many to miss to leave.
	Rise, Fall int
}

// Outliers says which members are ejected because they do much worse than the others (healthcheck.OutlierConfig).
type Outliers struct {
	// Method is iqr, stddev or off.
	Method string
	// Deviations is how many standard deviations stddev allows.
	Deviations float64
	// MinSamples is how many probes a member is judged by at least; Floor the latency below which it is never judged.
	MinSamples int
	Floor      time.Duration
	// Eject is how long a first ejection lasts, MaxEject how long any.
	Eject, MaxEject time.Duration
}

// DefaultConfig returns the defaults of every field that has one.
func DefaultConfig() Config {
	return Config{
		Health:      Health{Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 2, Fall: 3},
		Policy:      "ring",
		SlowStart:   10 * time.Second,
		Outliers:    Outliers{Method: "iqr", Deviations: 1.9, MinSamples: 5, Floor: 100 * time.Millisecond, Eject: 30 * time.Second, MaxEject: 5 * time.Minute},
		MaxAge:      time.Second,
		MaxStale:    5 * time.Minute,
		ShrinkHold:  time.Minute,
		MaxUpstream: 16,
		MaxAnswer:   upstream.DefaultMaxAnswer,
	}
}

// HeadsOf returns the policy by which a broker heads a list: the pool's own if none is named, but for the ring, which would
// give all clients behind one address the same first broker, so that they get each in turn (docs/adr/0005).
func HeadsOf(pool, heads string) string {
	switch {
	case heads != "":
		return heads
	case pool == "ring":
		return "round-robin"
	}
	return pool
}

// withDefaults fills in what was left zero.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	for _, f := range []struct{ v, d *time.Duration }{
		{&c.Health.Interval, &d.Health.Interval},
		{&c.Health.Timeout, &d.Health.Timeout},
		{&c.MaxAge, &d.MaxAge},
		{&c.MaxStale, &d.MaxStale},
		{&c.ShrinkHold, &d.ShrinkHold},
		{&c.SlowStart, &d.SlowStart},
		{&c.Outliers.Floor, &d.Outliers.Floor},
		{&c.Outliers.Eject, &d.Outliers.Eject},
		{&c.Outliers.MaxEject, &d.Outliers.MaxEject},
	} {
		if *f.v == 0 {
			*f.v = *f.d
		}
	}
	for _, f := range []struct{ v, d *int }{
		{&c.Health.Rise, &d.Health.Rise},
		{&c.Health.Fall, &d.Health.Fall},
		{&c.MaxUpstream, &d.MaxUpstream},
		{&c.MaxAnswer, &d.MaxAnswer},
		{&c.Outliers.MinSamples, &d.Outliers.MinSamples},
	} {
		if *f.v == 0 {
			*f.v = *f.d
		}
	}
	c.Policy = cmp.Or(c.Policy, d.Policy)
	c.Heads = HeadsOf(c.Policy, c.Heads)
	c.Outliers.Method = cmp.Or(c.Outliers.Method, d.Outliers.Method)
	c.Outliers.Deviations = cmp.Or(c.Outliers.Deviations, d.Outliers.Deviations)
	return c
}

// validate names the first fault and its fix. The configuration file's own faults, with line and caret, are found before.
func (c Config) validate() error {
	switch {
	case c.Name == "" || strings.ContainsAny(c.Name, "/\\\x00") || strings.HasPrefix(c.Name, "."):
		return fmt.Errorf("pool name %q: give it a name that is fit for a file name, without / and not starting with a dot", c.Name)
	case c.Health.Interval < 0 || c.Health.Timeout < 0 || c.MaxAge < 0 || c.MaxStale < 0 || c.ShrinkHold < 0 ||
		c.Outliers.Floor < 0 || c.Outliers.Eject < 0 || c.Outliers.MaxEject < 0:
		return fmt.Errorf("pool %s: a duration is negative: give positive ones", c.Name)
	case c.Health.Rise < 0 || c.Health.Fall < 0 || c.MaxUpstream < 0 || c.MaxAnswer < 0 ||
		c.Outliers.MinSamples < 0 || c.Outliers.Deviations < 0:
		return fmt.Errorf("pool %s: rise, fall, the upstream connections, the largest answer, samples and deviations have to be above 0", c.Name)
	case c.MaxStale < c.MaxAge:
		return fmt.Errorf("pool %s: max_stale %v is below max_age %v: raise it", c.Name, c.MaxStale, c.MaxAge)
	}
	for _, name := range []string{c.Policy, c.Heads} {
		if _, ok := policy.Policies[name]; !ok {
			return fmt.Errorf("pool %s: unknown policy %q: take one of %s", c.Name, name,
				strings.Join(slices.Sorted(maps.Keys(policy.Policies)), ", "))
		}
	}
	if !slices.Contains(healthcheck.Methods, healthcheck.Method(c.Outliers.Method)) {
		return fmt.Errorf("pool %s: unknown outlier method %q: take one of %v", c.Name, c.Outliers.Method, healthcheck.Methods)
	}
	return nil
}

// errNoProvider is a pool that nobody could ever fill.
var errNoProvider = errors.New("no discovery provider: give the pool at least one")
