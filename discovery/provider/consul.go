package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/consul/api"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/kvip/kvip/discovery"
)

// How Consul is read. The index rules and the wait are those of https://developer.hashicorp.com/consul/api-docs/features/blocking.
const (
	consulWait      = 5 * time.Minute  // a blocking read's wait
	consulWaitStale = 10 * time.Second // after a stale answer, which may become true without a change of the index
	consulGrace     = 10 * time.Second // for the answer itself, on top of the wait and the jitter that a server adds
	consulMaxLag    = 5 * time.Second  // a server out of touch with the leader for longer gives stale answers
	consulMaxRate   = 1                // reads a second, whatever comes back and how fast
	consulBurst     = 2
	consulMaxBytes  = 32 << 20
	consulMaxEntry  = 10_000
	consulMaxToken  = 4 << 10
)

// ConsulSettings is the top-level `consul:` section.
type ConsulSettings struct {
	// Address is host:port, or a URL with http or https; "" is 127.0.0.1:8500. The environment's CONSUL_HTTP_TOKEN and
	// CONSUL_HTTP_TOKEN_FILE count as in any Consul tool when TokenFile is empty.
	Address string `yaml:"address"`
	// TokenFile holds the ACL token; it is read anew for every query, so that a rotated token is used at once.
	TokenFile string `yaml:"token_file"`
	// Datacenter is the one to ask for; "" is the agent's own.
	Datacenter string `yaml:"datacenter"`
}

// Validate returns every fault, joined; each is a *FieldError.
func (s ConsulSettings) Validate() error {
	var errs []error
	if err := checkConsulAddress(s.Address); s.Address != "" && err != nil {
		errs = append(errs, &FieldError{Field: "address", Problem: err.Error(), Fix: "write host:port or http(s)://host:port, e.g. 127.0.0.1:8500"})
	}
	if _, err := s.token(); err != nil {
		errs = append(errs, &FieldError{Field: "token_file", Problem: err.Error(), Fix: "name a readable file that holds the token, or leave it out"})
	}
	return errors.Join(errs...)
}

func checkConsulAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || !strings.Contains(address, "://") {
		_, _, err := splitAddr(address)
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is neither http nor https", address)
	}
	_, err = cleanHost(u.Hostname())
	return err
}

// token reads the token file; "" without one.
func (s ConsulSettings) token() (string, error) {
	if s.TokenFile == "" {
		return "", nil
	}
	info, err := os.Stat(s.TokenFile)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > consulMaxToken {
		return "", fmt.Errorf("%s is no file of at most %d bytes", s.TokenFile, consulMaxToken)
	}
	b, err := os.ReadFile(s.TokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("%s is empty", s.TokenFile)
	}
	return token, nil
}

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
	if err := errors.Join(c.Validate(), deps.Consul.Validate()); err != nil {
		return nil, err
	}
	deps = deps.withDefaults("consul")
	p := &consul{
		Deps: deps, cfg: *c, refresh: make(chan struct{}, 1), warned: map[string]string{},
		limiter: rate.NewLimiter(consulMaxRate, consulBurst),
	}
	if p.Transport == nil {
		p.own = newTransport()
		p.Transport = p.own
	}
	client, err := api.NewClient(&api.Config{
		Address: deps.Consul.Address, Scheme: "http", Datacenter: deps.Consul.Datacenter,
		HttpClient: newHTTPClient(p.Transport, consulMaxBytes),
	})
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	p.health = client.Health()
	return p, nil
}

// consul watches one service by blocking queries.
type consul struct {
	Deps
	cfg     ConsulConfig
	own     *http.Transport
	health  *api.Health
	limiter *rate.Limiter
	refresh chan struct{}
	warned  map[string]string // ID -> the node_id that was complained about
}

// errRefresh ends a blocking query whose registry is to be read anew.
var errRefresh = errors.New("asked to read again")

// Name implements discovery.Provider.
func (c *consul) Name() string { return c.Deps.Name }

// Refresh implements discovery.Refresher.
func (c *consul) Refresh() {
	select {
	case c.refresh <- struct{}{}:
	default:
	}
}

// Run implements discovery.Provider.
func (c *consul) Run(ctx context.Context, publish func(discovery.Update)) error {
	if c.own != nil {
		defer c.own.CloseIdleConnections()
	}
	retry := &backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, Multiplier: 1.5, RandomizationFactor: 0.25, MaxInterval: 1600 * time.Millisecond,
	}
	var index uint64
	wait := consulWait
	for {
		if err := c.limiter.Wait(ctx); err != nil {
			<-ctx.Done() // it gives up ahead of a deadline
			return ctx.Err()
		}
		update, next, err := c.read(ctx, index, wait)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errRefresh):
			index = 0
			continue
		case err != nil:
			publish(discovery.Update{Provider: c.Name(), Err: err, At: c.Now()})
			// A new server may count from the start: waiting for the old index would make the watch deaf.
			index = 0
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(retry.NextBackOff()):
			}
			continue
		}
		retry.Reset()
		publish(update)
		wait = consulWait
		if update.Stale {
			wait = consulWaitStale
		}
		switch {
		case next < index:
			index = 0
		default:
			index = max(next, 1)
		}
	}
}

// read asks once, and returns within the wait, plus what a server may add to it, plus the grace.
func (c *consul) read(ctx context.Context, index uint64, wait time.Duration) (discovery.Update, uint64, error) {
	token, err := c.Consul.token()
	if err != nil {
		return discovery.Update{}, 0, fmt.Errorf("consul.token_file: %w", err)
	}
	limit := consulGrace
	if index > 0 {
		limit += wait + wait/16
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no answer within %v", limit)) })
	defer timer.Stop()
	if index > 0 { // a read without an index is fresh by itself
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			select {
			case <-c.refresh:
				cancel(errRefresh)
			case <-stop:
			}
		}()
	}
	q := &api.QueryOptions{AllowStale: true, WaitIndex: index, WaitTime: wait, Token: token}
	// Never passing only: that would hide which entries are left out, and drop those at warning.
	entries, meta, err := c.health.Service(c.cfg.Service, "", false, q.WithContext(ctx))
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return discovery.Update{}, 0, c.explain(err)
	}
	if len(entries) > consulMaxEntry {
		return discovery.Update{}, 0, fmt.Errorf("service %q has %d entries, above the limit of %d", c.cfg.Service, len(entries), consulMaxEntry)
	}
	if meta.ResultsFilteredByACLs && len(entries) == 0 {
		return discovery.Update{}, 0, fmt.Errorf("the token may not see service %q: it needs service:read on it and node:read on its nodes", c.cfg.Service)
	}
	u := c.take(entries)
	// An agent that streams a service's changes (the default since 1.10) never says whether there is a leader; what it
	// streams has been committed by one.
	leaderless := !meta.KnownLeader && meta.QueryBackend != api.QueryBackendStreaming
	u.Stale = leaderless || meta.LastContact > consulMaxLag || meta.ResultsFilteredByACLs
	return u, meta.LastIndex, nil
}

// explain words an error for an operator; what the peer sent is cut and made printable.
func (c *consul) explain(err error) error {
	if errors.Is(err, errRefresh) {
		return err
	}
	var status api.StatusError
	if !errors.As(err, &status) {
		return fmt.Errorf("consul: %w", err)
	}
	said := strconv.QuoteToGraphic(status.Body[:min(len(status.Body), 200)])
	if status.Code == http.StatusForbidden {
		source := "no token_file is set"
		if c.Consul.TokenFile != "" {
			source = "token_file " + c.Consul.TokenFile
		}
		return fmt.Errorf("consul refuses the read of service %q (403, %s; %s): the token needs service:read on it and node:read", c.cfg.Service, said, source)
	}
	return fmt.Errorf("consul answers %d: %s", status.Code, said)
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
