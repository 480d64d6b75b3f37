// Package discovery holds what registries say about a pool's brokers: instances, updates, and the rules by which an
// update becomes a pool's membership. It knows no Kafka and imports no other kvip package; each registry is one file of
// package discovery/provider.
package discovery

import (
	"context"
	"net"
	"strconv"
	"time"
)

// Instance is one broker endpoint as a registry tells it.
type Instance struct {
	// ID is the registry's own name for the entry, for logs and status.
	ID string `json:"id"`
	// Host and Port are where kvip dials the broker. Host is a name or a bare IP (no brackets).
	Host string `json:"host"`
	Port int    `json:"port"`
	// NodeID is the broker's node id when the registry knows it (Consul: meta "node_id"), else -1.
	NodeID int32 `json:"node_id"`
	// Rack is the registry's opinion of the broker's rack (Consul: meta "rack"), "" when it has none.
	Rack string `json:"rack"`
	// Weight is the share relative to the other members, 1 by default, 0 drains.
	Weight int `json:"weight"`
	// Warning says that the registry serves the entry under a warning (a Consul check at warning).
	Warning bool `json:"warning"`
	// Source is the name of the provider instance that told it ("static", "consul").
	Source string `json:"source"`
}

// Addr is Host:Port as net.Dial takes it, the identity of a member within a pool.
func (i Instance) Addr() string { return net.JoinHostPort(i.Host, strconv.Itoa(i.Port)) }

// Update is one whole answer of a provider. A failed read is an Update with Err set and no instances: it never changes
// the membership, only what status shows.
type Update struct {
	// Provider names the provider instance, unique within a pool ("consul", "static").
	Provider string
	// Instances is the complete list, one entry an Addr. Empty is a proposal, not an order.
	Instances []Instance
	// Skipped are the entries that the provider did not take, each with its countable reason.
	Skipped []Skipped
	// Stale says that the answer may lag the truth or lack a part of it (a Consul read without a leader, or filtered by
	// an ACL): what it lists is taken, what it does not list means nothing.
	Stale bool
	// Explicit says that the list is an operator's own words (the configuration itself), so that what it no longer lists
	// goes at once.
	Explicit bool
	// Orders are an Overseer's, nil in others' updates.
	Orders *Orders
	// Err is why the read failed.
	Err error
	// At is when the answer was complete.
	At time.Time
}

// Maintenance is the reason of a Skipped that an operator has taken out of service in the registry.
const Maintenance = "maintenance"

// Skipped is an entry that a provider left out.
type Skipped struct {
	ID string
	// Addr is what Instance.Addr would be.
	Addr   string
	Reason string // snake_case, bounded set, fit for a metric label: "critical", "maintenance", "no_port", "bad_address", "duplicate", "tag"
}

// Provider watches one registry. Run blocks until ctx ends and calls publish, from one goroutine, with each whole answer
// (changed or not) and each failure; it retries by itself and returns only ctx's error.
type Provider interface {
	Name() string
	Run(ctx context.Context, publish func(Update)) error
}

// Refresher is a Provider that can be asked to read its registry now instead of waiting for a change, which is how a
// removal gets the second look that it needs. Refresh never blocks; the answer comes through publish, within the
// provider's own rate limit.
type Refresher interface {
	Provider
	Refresh()
}
