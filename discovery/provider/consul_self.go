package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/zap"
)

// How kvip registers itself.
const (
	defaultTTL = 10 * time.Second
	minTTL     = 2 * time.Second
	maxTTL     = 10 * time.Minute
	// selfLook is how often readiness is looked at between two beats.
	selfLook = 200 * time.Millisecond
	// selfRetry is how long after a failure the agent is asked again, unless the next beat is due sooner.
	selfRetry = time.Second
	// selfFinish is how long one that leaves lets a request go on that is under way: an agent may carry out what nobody
	// waits for any more, and after the deregistration.
	selfFinish = time.Second
	// selfForget is after what time the agent drops an entry whose kvip does not come back; a minute is its least.
	selfForget = 10 * time.Minute
)

// RegisterConfig is the top-level `register:` section: kvip itself as a Consul service, an instance for each VIP.
type RegisterConfig struct {
	// Service is the name to register as; empty: kvip does not register itself.
	Service string `yaml:"service"`
	// Address is what others reach the VIPs by; empty: each VIP's own, or the agent's node address when it listens on all.
	Address string   `yaml:"address"`
	Tags    []string `yaml:"tags"`
	// TTL is after what time without a sign of life the entry turns critical.
	TTL time.Duration `yaml:"ttl"`
}

// DefaultRegister is a section that sets nothing.
func DefaultRegister() RegisterConfig { return RegisterConfig{TTL: defaultTTL} }

// Validate returns every fault, joined; each is a *FieldError.
func (c RegisterConfig) Validate() error {
	var errs []error
	if strings.ContainsAny(c.Service, "/?#% \t") {
		errs = append(errs, &FieldError{Field: "service", Problem: fmt.Sprintf("%q is no service name", c.Service), Fix: "write letters, digits and '-', like kvip"})
	}
	if _, err := cleanHost(c.Address); c.Address != "" && err != nil {
		errs = append(errs, &FieldError{Field: "address", Problem: err.Error(), Fix: "write an IP address or a host name, without a port"})
	}
	for i, t := range c.Tags {
		if t == "" {
			errs = append(errs, &FieldError{Field: fmt.Sprintf("tags[%d]", i), Problem: "is empty", Fix: "write a tag, or leave it out"})
		}
	}
	if c.TTL < minTTL || c.TTL > maxTTL {
		errs = append(errs, &FieldError{Field: "ttl", Problem: fmt.Sprintf("%v is out of range", c.TTL), Fix: fmt.Sprintf("write %v to %v", minTTL, maxTTL)})
	}
	return errors.Join(errs...)
}

// SelfEntry is one VIP to register.
type SelfEntry struct {
	// Name is the VIP's, a tag of its entry; Pool is the pool behind it.
	Name, Pool string
	// Listen is the bound host:port.
	Listen func() string
	// Ready says whether a client could bootstrap there, and why not.
	Ready func() (bool, string)
}

// SelfRegistration keeps the VIPs in the agent's list: it registers them anew whenever the agent has lost them.
type SelfRegistration struct {
	cfg     RegisterConfig
	deps    Deps
	agent   *api.Agent
	own     *http.Transport
	entries []SelfEntry
	// leaving ends when kvip is told to leave, by leave; left is closed when that is done.
	leaving context.Context
	leave   context.CancelFunc
	left    chan struct{}

	mu     sync.Mutex
	faults map[string]selfFault // by id of the entry
}

// selfFault is why an entry is not as it should be.
type selfFault struct {
	since time.Time
	err   string
}

// NewSelfRegistration makes the registration of entries with the agent at deps.Consul. Run keeps it, Leave ends it.
func NewSelfRegistration(cfg RegisterConfig, deps Deps, entries []SelfEntry) (*SelfRegistration, error) {
	if err := errors.Join(cfg.Validate(), deps.Consul.Validate()); err != nil {
		return nil, err
	}
	s := &SelfRegistration{cfg: cfg, deps: deps.withDefaults("register"), entries: entries, left: make(chan struct{}), faults: map[string]selfFault{}}
	s.leaving, s.leave = context.WithCancel(context.Background())
	rt := s.deps.Transport
	if rt == nil {
		s.own = newTransport()
		rt = s.own
	}
	client, err := s.deps.Consul.newClient(rt)
	if err != nil {
		return nil, err
	}
	s.agent = client.Agent()
	return s, nil
}

// Run registers and beats until Leave has deregistered, or ctx ends: then the entries stay and turn critical by themselves.
func (s *SelfRegistration) Run(ctx context.Context) error {
	if s.own != nil {
		defer s.own.CloseIdleConnections()
	}
	var all sync.WaitGroup
	for _, e := range s.entries {
		all.Go(func() { s.keep(ctx, e) })
	}
	all.Wait()
	close(s.left)
	<-ctx.Done()
	return ctx.Err()
}

// Leave takes all entries out of the list and returns once that is done, or when ctx ends.
func (s *SelfRegistration) Leave(ctx context.Context) {
	s.leave()
	select {
	case <-s.left:
	case <-ctx.Done():
		s.deps.Log.Warn("register: kvip leaves while Consul still lists it: its check turns critical after the TTL", zap.Duration("ttl", s.cfg.TTL))
	}
}

// Faults says in a line each which entries Consul does not list as they should be, since when, and why.
func (s *SelfRegistration) Faults() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, id := range slices.Sorted(maps.Keys(s.faults)) {
		f := s.faults[id]
		out = append(out, fmt.Sprintf("register: Consul does not list %s as it should for %v now: %s", id, time.Since(f.since).Round(time.Second), f.err))
	}
	return out
}

// fault keeps for Faults how an entry is, "" when it is well.
func (s *SelfRegistration) fault(id, err string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, failed := s.faults[id]
	switch {
	case err == "":
		delete(s.faults, id)
	case failed:
		s.faults[id] = selfFault{f.since, err}
	default:
		s.faults[id] = selfFault{time.Now(), err}
	}
}

// keep keeps one entry.
func (s *SelfRegistration) keep(ctx context.Context, e SelfEntry) {
	k := &keeper{SelfRegistration: s, entry: e}
	tick := time.NewTicker(selfLook)
	defer tick.Stop()
	beats, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.leaving, func() {
		select {
		case <-time.After(selfFinish):
			cancel()
		case <-beats.Done():
		}
	})()
	for {
		ready, reason := e.Ready()
		now := time.Now() // which goes on while the process is stopped
		since := now.Sub(k.at)
		if said := status(ready); since >= s.cfg.TTL/3 || k.failed == "" && said != k.said || k.failed != "" && since >= selfRetry {
			k.beat(beats, said, cmp.Or(reason, "clients can bootstrap"))
			k.at = now
		}
		select {
		case <-ctx.Done():
			return
		case <-s.leaving.Done():
			k.deregister(ctx)
			return
		case <-tick.C:
		}
	}
}

func status(ready bool) string {
	if ready {
		return api.HealthPassing
	}
	return api.HealthCritical
}

// keeper is one entry with what the agent was told last.
type keeper struct {
	*SelfRegistration
	entry      SelfEntry
	registered bool // once, by this process
	said       string
	at         time.Time
	failed     string
}

// id is the same for the same VIP whatever happens to the process, so that there is never a second entry.
func (k *keeper) id() string {
	_, port, _ := net.SplitHostPort(k.entry.Listen())
	if a := k.address(); a != "" {
		return fmt.Sprintf("%s-%s-%s", k.cfg.Service, nodeName(a), port)
	}
	return fmt.Sprintf("%s-%s", k.cfg.Service, port)
}

// address is "" for the agent's own.
func (k *keeper) address() string {
	host, _, _ := net.SplitHostPort(k.entry.Listen())
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = ""
	}
	return cmp.Or(k.cfg.Address, host)
}

// beat tells the agent how the VIP is; an agent that does not know it is told what it is first.
func (k *keeper) beat(ctx context.Context, said, why string) {
	ctx, cancel := context.WithTimeout(ctx, max(k.cfg.TTL/3, time.Second))
	defer cancel()
	token, err := k.deps.Consul.token()
	if err == nil {
		q := (&api.QueryOptions{Token: token}).WithContext(ctx)
		if k.registered {
			err = k.agent.UpdateTTLOpts("service:"+k.id(), why, said, q)
		}
		// An agent that has lost the check says so in several ways by version, and refuses for other reasons as well.
		if unknown := (api.StatusError{}); !k.registered || errors.As(err, &unknown) {
			err = k.agent.ServiceRegisterOpts(k.registration(said), api.ServiceRegisterOpts{Token: token}.WithContext(ctx))
			if err == nil && k.registered {
				k.deps.Log.Info("register: Consul had lost the entry: it is registered again", zap.String("id", k.id()))
			}
			if err == nil {
				k.registered = true
				err = k.agent.UpdateTTLOpts("service:"+k.id(), why, said, q)
			}
		}
	}
	if err != nil && k.leaving.Err() == nil {
		err = explainConsul(err, k.deps.Consul, fmt.Sprintf("service %q", k.cfg.Service), "service:write on it")
		if k.failed != err.Error() {
			k.deps.Log.Warn("register: Consul does not list this kvip as it should", zap.String("id", k.id()), zap.Error(err))
		}
		k.failed = err.Error()
		k.fault(k.id(), k.failed)
		return
	}
	if k.said != said || k.failed != "" {
		k.deps.Log.Info("register: Consul knows", zap.String("id", k.id()), zap.String("status", said), zap.String("why", why))
	}
	k.said, k.failed = said, ""
	k.fault(k.id(), "")
}

func (k *keeper) registration(said string) *api.AgentServiceRegistration {
	_, p, _ := net.SplitHostPort(k.entry.Listen())
	port, _ := strconv.Atoi(p) // it is bound
	return &api.AgentServiceRegistration{
		ID: k.id(), Name: k.cfg.Service, Address: k.address(), Port: port, Tags: append([]string{k.entry.Name}, k.cfg.Tags...),
		Meta: map[string]string{"vip": k.entry.Name, "pool": k.entry.Pool},
		Check: &api.AgentServiceCheck{
			CheckID: "service:" + k.id(), Name: "a client can bootstrap here", TTL: k.cfg.TTL.String(), Status: said,
			DeregisterCriticalServiceAfter: selfForget.String(),
		},
	}
}

func (k *keeper) deregister(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, max(k.cfg.TTL/3, time.Second))
	defer cancel()
	token, err := k.deps.Consul.token()
	if err == nil {
		err = k.agent.ServiceDeregisterOpts(k.id(), (&api.QueryOptions{Token: token}).WithContext(ctx))
	}
	if unknown := (api.StatusError{}); err != nil && !(errors.As(err, &unknown) && unknown.Code == http.StatusNotFound) {
		k.deps.Log.Warn("register: Consul still lists this kvip", zap.String("id", k.id()), zap.Error(explainConsul(err, k.deps.Consul, "service "+k.cfg.Service, "service:write on it")))
		return
	}
	k.deps.Log.Info("register: Consul lists this kvip no more", zap.String("id", k.id()))
}
