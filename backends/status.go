package backends

import (
	"time"

	"github.com/kvip/kvip/discovery"
)

// Status is one pool as /statusz.json, `kvip status` and /readyz show it. It is a copy: whoever gets it may keep it.
type Status struct {
	Pool    string `json:"pool"`
	Standby bool   `json:"standby,omitempty"`
	// Policy is what forwards go by, Heads what a list's first broker goes by, Zone the rack that comes first.
	Policy string `json:"policy"`
	Heads  string `json:"heads"`
	Zone   string `json:"zone,omitempty"`
	// Ready says whether a client could bootstrap here; Reason is the first rule that fails, "" when ready.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// ClusterID is the pinned cluster id, "" before it is known; ClusterIDFrom says who pinned it: config, state_dir,
	// majority.
	ClusterID     string `json:"cluster_id,omitempty"`
	ClusterIDFrom string `json:"cluster_id_from,omitempty"`

	// View counts the views of the pool that readers have been given: changes that come fast share one.
	View      uint64            `json:"view"`
	Members   []MemberStatus    `json:"members"`
	Snapshot  SnapshotStatus    `json:"snapshot"`
	Discovery []DiscoveryStatus `json:"discovery"`
	// InNeed says that fewer than half of the members pass their probes: those that do not are asked too, when the others
	// have failed.
	InNeed bool `json:"in_need,omitempty"`
	// Held are members that no registry lists any more and that stay for now.
	Held     []discovery.Held `json:"held,omitempty"`
	Forwards ForwardStatus    `json:"forwards"`
	// Rejected counts refused candidates by reason since the start.
	Rejected map[string]uint64 `json:"rejected,omitempty"`
	// Alarms are the conditions that want a person now, each a sentence.
	Alarms []string `json:"alarms,omitempty"`
}

// MemberStatus is one registered broker.
type MemberStatus struct {
	// Broker is the registered host:port, ID the registry's name for it, Source the provider that told it.
	Broker string `json:"broker"`
	ID     string `json:"id,omitempty"`
	Source string `json:"source,omitempty"`
	// NodeID is -1 until a probe or the registry tells it.
	NodeID int32  `json:"node_id"`
	Rack   string `json:"rack,omitempty"`
	Weight int    `json:"weight"`
	// State is unknown, serving, trial, ejected, draining, down or quarantined; Reason is why it is not serving, in
	// snake_case.
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"`
	// Until is when an ejection ends; Ejections is how many are remembered.
	Until     time.Time `json:"until,omitzero"`
	Ejections int       `json:"ejections,omitempty"`
	// SharePercent is how much of its share of forwards it gets, below 100 on trial and after a return.
	SharePercent float64 `json:"share_percent"`
	// LastProbe is the last probe's outcome: "ok" or its reason; LastProbeMS its duration.
	LastProbe   string  `json:"last_probe,omitempty"`
	LastProbeMS float64 `json:"last_probe_ms,omitempty"`
	// InFlight are the forwarded requests that wait for this broker's answer, Connections its open forward connections.
	InFlight    int `json:"in_flight"`
	Connections int `json:"connections"`
	// Forwardable says that forwards may go to it; Listed that the snapshot lists it.
	Forwardable bool `json:"forwardable"`
	Listed      bool `json:"listed"`
}

// SnapshotStatus is what lookups are answered from.
type SnapshotStatus struct {
	// Generation is 0 before the first accepted view.
	Generation uint64 `json:"generation"`
	// AgeSeconds is the time since a broker last confirmed the view, -1 before the first.
	AgeSeconds float64 `json:"age_seconds"`
	// Fresh says that the age is within max_age, Usable that it is within max_stale.
	Fresh  bool `json:"fresh"`
	Usable bool `json:"usable"`
	// FromDisk says that no broker has confirmed it since this process started.
	FromDisk   bool `json:"from_disk,omitempty"`
	KRaft      bool `json:"kraft"`
	Brokers    int  `json:"brokers"`
	Topics     int  `json:"topics"`
	Partitions int  `json:"partitions"`
	// EffectiveMaxAgeSeconds is max(max_age, 5 x the time a refresh takes).
	EffectiveMaxAgeSeconds float64 `json:"effective_max_age_seconds"`
	RefreshSeconds         float64 `json:"refresh_seconds"`
	// LastRefreshBroker answered the last refresh; LastRefreshError is why the last refresh failed, "" when it did not.
	LastRefreshBroker string `json:"last_refresh_broker,omitempty"`
	LastRefreshError  string `json:"last_refresh_error,omitempty"`
	LastRejected      string `json:"last_rejected,omitempty"`
	// APIKeys is the number of keys in the pool's ApiVersions overlap.
	APIKeys int `json:"api_keys"`
	// StateFile says what became of the file in state_dir at the start: loaded, none, off, or why it was ignored.
	StateFile string `json:"state_file,omitempty"`
}

// DiscoveryStatus is one provider.
type DiscoveryStatus struct {
	Provider    string    `json:"provider"`
	LastSuccess time.Time `json:"last_success,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	// ErrorSince is when it began to fail.
	ErrorSince time.Time `json:"error_since,omitzero"`
	// Stale says that its last answer may lag or lack the truth.
	Stale     bool `json:"stale,omitempty"`
	Instances int  `json:"instances"`
	// Skipped counts the entries of its last answer that it did not take, by reason.
	Skipped map[string]int `json:"skipped,omitempty"`
}

// ForwardStatus is the state of forwarding as a whole.
type ForwardStatus struct {
	InFlight    int    `json:"in_flight"`
	Waiting     int    `json:"waiting"`
	Connections int    `json:"connections"`
	Shared      uint64 `json:"shared"`
	// ToFailing counts those that went to a broker whose probe fails, for want of a better one.
	ToFailing uint64 `json:"to_failing"`
}
