package provider

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"
	"go.uber.org/zap"

	"github.com/kvip/kvip/discovery"
)

const consulMaxEntry = 10_000

// ConsulConfig is `discovery: {type: consul, service: NAME, tags: [...]}`.
type ConsulConfig struct {
	Type    string `yaml:"type"`
	Service string `yaml:"service"`
	// Tags that an entry must all have.
	Tags []string `yaml:"tags"`
}

// Validate implements Config.
func (c *ConsulConfig) Validate() error {
	var errs []error
	if c.Service == "" || strings.ContainsAny(c.Service, "/?#%") || strings.TrimSpace(c.Service) != c.Service {
		errs = append(errs, &FieldError{Field: "service", Problem: fmt.Sprintf("%q is no service name", c.Service), Fix: "name the Consul service that the brokers are registered as"})
	}
	for i, t := range c.Tags {
		if t == "" {
			errs = append(errs, &FieldError{Field: fmt.Sprintf("tags[%d]", i), Problem: "is empty", Fix: "write a tag, or leave it out"})
		}
	}
	return errors.Join(errs...)
}

// Build implements Config.
func (c *ConsulConfig) Build(deps Deps) (discovery.Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	watch, err := newConsulWatch(deps.withDefaults("consul"), fmt.Sprintf("service %q", c.Service), "service:read on it and node:read on its nodes")
	if err != nil {
		return nil, err
	}
	p := &consul{consulWatch: watch, cfg: *c, warned: map[string]string{}}
	p.query = p.entries
	return p, nil
}

// consul watches one service.
type consul struct {
	*consulWatch
	cfg    ConsulConfig
	warned map[string]string // ID -> the node_id that was complained about
}

// entries reads the service once.
func (c *consul) entries(q *api.QueryOptions) (discovery.Update, *api.QueryMeta, error) {
	// Any server may answer: one without a leader too, and how old that is is known.
	q.AllowStale = true
	// Never passing only: that would hide which entries are left out, and drop those at warning.
	entries, meta, err := c.client.Health().Service(c.cfg.Service, "", false, q)
	if err != nil {
		return discovery.Update{}, nil, err
	}
	if len(entries) > consulMaxEntry {
		return discovery.Update{}, nil, fmt.Errorf("service %q has %d entries, above the limit of %d", c.cfg.Service, len(entries), consulMaxEntry)
	}
	if meta.ResultsFilteredByACLs && len(entries) == 0 {
		return discovery.Update{}, nil, fmt.Errorf("the token may not see service %q: it needs service:read on it and node:read on its nodes", c.cfg.Service)
	}
	u := c.take(entries)
	// An agent that streams a service's changes (the default since 1.10) never says whether there is a leader; what it
	// streams has been committed by one.
	leaderless := !meta.KnownLeader && meta.QueryBackend != api.QueryBackendStreaming
	u.Stale = leaderless || meta.LastContact > consulMaxLag || meta.ResultsFilteredByACLs
	return u, meta, nil
}

// take turns entries into instances, ascending by address, and says why it leaves others out.
func (c *consul) take(entries []*api.ServiceEntry) discovery.Update {
	u := discovery.Update{Provider: c.Name(), At: c.Now()}
	for _, e := range entries {
		if e == nil || e.Service == nil {
			continue
		}
		in, reason := c.instance(e)
		if reason != "" {
			u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.ID, Addr: in.Addr(), Reason: reason})
			continue
		}
		u.Instances = append(u.Instances, in)
	}
	// Sorted, so that of entries with one address the same one wins whatever the order they come in.
	slices.SortFunc(u.Instances, func(a, b discovery.Instance) int {
		return strings.Compare(a.Addr()+"\x00"+a.ID, b.Addr()+"\x00"+b.ID)
	})
	kept := u.Instances[:0]
	for _, in := range u.Instances {
		if n := len(kept); n > 0 && kept[n-1].Addr() == in.Addr() {
			u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.ID, Addr: in.Addr(), Reason: "duplicate"})
			continue
		}
		kept = append(kept, in)
	}
	u.Instances = kept
	return u
}

// instance reads one entry. reason says why it is not to be taken, "" when it is.
func (c *consul) instance(e *api.ServiceEntry) (in discovery.Instance, reason string) {
	s := e.Service
	in = discovery.Instance{ID: s.ID, Host: s.Address, Port: s.Port, NodeID: -1, Rack: s.Meta["rack"], Weight: s.Weights.Passing, Source: c.Name()}
	if e.Node != nil {
		in.ID = e.Node.Node + "/" + s.ID
		if in.Host == "" {
			in.Host = e.Node.Address
		}
	}
	if in.Weight <= 0 {
		in.Weight = 1 // Consul itself allows no less than 1 for passing: it was left out
	}
	host, err := cleanHost(in.Host)
	if err == nil {
		in.Host = host
	}
	defer func() { in.Weight = min(in.Weight, maxWeight) }()
	checks := slices.DeleteFunc(slices.Clone(e.Checks), func(h *api.HealthCheck) bool { return h == nil })
	switch status := checks.AggregatedStatus(); {
	case status == api.HealthMaint:
		return in, discovery.Maintenance
	case status == api.HealthWarning:
		in.Warning = true
		if s.Weights.Passing > 0 {
			in.Weight = max(s.Weights.Warning, 0)
		}
	case status != api.HealthPassing:
		return in, "critical"
	}
	switch {
	case slices.ContainsFunc(c.cfg.Tags, func(t string) bool { return !slices.Contains(s.Tags, t) }):
		return in, "tag"
	case in.Port <= 0 || in.Port >= 1<<16:
		return in, "no_port"
	case err != nil:
		return in, "bad_address"
	}
	c.nodeID(&in, s.Meta["node_id"])
	return in, ""
}

// nodeID reads the meta field node_id. One that is no node id is complained about once and counts as unknown.
func (c *consul) nodeID(in *discovery.Instance, meta string) {
	if meta == "" {
		return
	}
	n, err := strconv.ParseInt(meta, 10, 32)
	if err == nil && n >= 0 {
		in.NodeID = int32(n)
		return
	}
	if len(c.warned) < consulMaxEntry && c.warned[in.ID] != meta {
		c.warned[in.ID] = meta
		c.Log.Warn("consul: meta node_id is no node id and is not used", zap.String("id", in.ID), zap.String("node_id", meta[:min(len(meta), 32)]))
	}
}
