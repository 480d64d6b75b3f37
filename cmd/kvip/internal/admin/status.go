package admin

import (
	"time"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/protocol/front"
)

// Status is the whole process as /statusz.json, the status page and `kvip status` show it.
type Status struct {
	// Healthy says that a client could bootstrap at every VIP; Reason is the first rule that fails, "" when healthy.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
	// Warnings are conditions that want a person although clients are served.
	Warnings []string `json:"warnings,omitempty"`

	PID           int       `json:"pid"`
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	// Admin is the admin listener's bound host:port.
	Admin string `json:"admin"`
	// Draining says that the process is on its way out.
	Draining bool `json:"draining,omitempty"`
	// Descriptors is how the limit of open files is divided.
	Descriptors Descriptors `json:"descriptors"`

	VIPs  []VIP             `json:"vips"`
	Pools []backends.Status `json:"pools"`
}

// VIP is one listener, with what it leads to.
type VIP struct {
	front.Status
	Pool   string `json:"pool"`
	Lookup string `json:"lookup"`
	// Ready says that a client could bootstrap here; Reason is why not.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// Descriptors is the division of RLIMIT_NOFILE.
type Descriptors struct {
	// Limit is the process's own, Reserve what is kept for pools, admin, logs and event loops; the VIPs share the rest.
	Limit   int `json:"limit"`
	Reserve int `json:"reserve"`
}

// Condition is one rule of readiness.
type Condition struct {
	Name string
	OK   bool
	// Detail is the state in words, why it does not hold when it does not.
	Detail string
}

// FirstFailing returns the rule that readiness fails by, in words, "" when all hold.
func FirstFailing(conditions []Condition) string {
	for _, c := range conditions {
		if !c.OK {
			return c.Name + ": " + c.Detail
		}
	}
	return ""
}
