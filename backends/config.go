package backends

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/backends/upstream"
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
	// Policy is a key of policy.Policies.
	Policy string
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

// DefaultConfig returns the defaults of every field that has one.
func DefaultConfig() Config {
	return Config{
		Health:      Health{Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 2, Fall: 3},
		Policy:      "round-robin",
		MaxAge:      time.Second,
		MaxStale:    5 * time.Minute,
		ShrinkHold:  time.Minute,
		MaxUpstream: 16,
		MaxAnswer:   upstream.DefaultMaxAnswer,
	}
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
	} {
		if *f.v == 0 {
			*f.v = *f.d
		}
	}
	if c.Policy == "" {
		c.Policy = d.Policy
	}
	return c
}

// validate names the first fault and its fix. The configuration file's own faults, with line and caret, are found before.
func (c Config) validate() error {
	switch {
	case c.Name == "" || strings.ContainsAny(c.Name, "/\\\x00") || strings.HasPrefix(c.Name, "."):
		return fmt.Errorf("pool name %q: give it a name that is fit for a file name, without / and not starting with a dot", c.Name)
	case c.Health.Interval < 0 || c.Health.Timeout < 0 || c.MaxAge < 0 || c.MaxStale < 0 || c.ShrinkHold < 0:
		return fmt.Errorf("pool %s: a duration is negative: give positive ones", c.Name)
	case c.Health.Rise < 0 || c.Health.Fall < 0 || c.MaxUpstream < 0 || c.MaxAnswer < 0:
		return fmt.Errorf("pool %s: rise, fall, the upstream connections and the largest answer have to be 1 or more", c.Name)
	case c.MaxStale < c.MaxAge:
		return fmt.Errorf("pool %s: max_stale %v is below max_age %v: raise it", c.Name, c.MaxStale, c.MaxAge)
	}
	if _, ok := policy.Policies[c.Policy]; !ok {
		var known []string
		for name := range policy.Policies {
			known = append(known, name)
		}
		slices.Sort(known)
		return fmt.Errorf("pool %s: unknown policy %q: take one of %s", c.Name, c.Policy, strings.Join(known, ", "))
	}
	return nil
}

// errNoProvider is a pool that nobody could ever fill.
var errNoProvider = errors.New("no discovery provider: give the pool at least one")
