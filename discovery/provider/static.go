package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvip/kvip/discovery"
)

// StaticConfig is `discovery: {type: static, brokers: [...]}`.
type StaticConfig struct {
	Type string `yaml:"type"`
	// Brokers are host:port, or mappings with more.
	Brokers []StaticBroker `yaml:"brokers"`
}

// StaticBroker is "host:port" or {address: host:port, rack: r1, weight: 2, node_id: 5}.
type StaticBroker struct {
	Address string `yaml:"address"`
	Rack    string `yaml:"rack"`
	// Weight is 1 when left out.
	Weight *int `yaml:"weight"`
	// NodeID is the broker's node id, checked by the probe; unknown when left out.
	NodeID *int32 `yaml:"node_id"`
}

// UnmarshalYAML takes either form.
func (b *StaticBroker) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&b.Address) == nil {
		return nil
	}
	type mapping StaticBroker
	return unmarshal((*mapping)(b))
}

// maxWeight is the largest weight, as in Consul.
const maxWeight = 65535

// Validate implements Config.
func (c *StaticConfig) Validate() error {
	return checkBrokers(c.Brokers)
}

// checkBrokers returns every fault of a list, joined; each is a *FieldError.
func checkBrokers(brokers []StaticBroker) error {
	if len(brokers) == 0 {
		return &FieldError{Field: "brokers", Problem: "lists no broker", Fix: "give at least one host:port"}
	}
	var errs []error
	first := map[string]int{}
	for i, b := range brokers {
		field := fmt.Sprintf("brokers[%d]", i)
		in, err := b.instance()
		if err != nil {
			errs = append(errs, &FieldError{Field: field, Problem: err.Error(), Fix: "write host:port, e.g. kafka-1.example.com:9092"})
			continue
		}
		if at, dup := first[in.Addr()]; dup {
			errs = append(errs, &FieldError{Field: field, Problem: fmt.Sprintf("%s is brokers[%d] already", in.Addr(), at), Fix: "list each broker once"})
		} else {
			first[in.Addr()] = i
		}
		if in.Weight < 0 || in.Weight > maxWeight {
			errs = append(errs, &FieldError{Field: field + ".weight", Problem: fmt.Sprintf("%d is no weight", in.Weight), Fix: fmt.Sprintf("write 0 (drain) to %d", maxWeight)})
		}
		if b.NodeID != nil && *b.NodeID < 0 {
			errs = append(errs, &FieldError{Field: field + ".node_id", Problem: fmt.Sprintf("%d is no node id", *b.NodeID), Fix: "write the broker's node.id, or leave it out"})
		}
	}
	return errors.Join(errs...)
}

func (b StaticBroker) instance() (discovery.Instance, error) {
	host, port, err := splitAddr(b.Address)
	in := discovery.Instance{ID: b.Address, Host: host, Port: port, Rack: b.Rack, NodeID: -1, Weight: 1}
	if b.Weight != nil {
		in.Weight = *b.Weight
	}
	if b.NodeID != nil {
		in.NodeID = *b.NodeID
	}
	return in, err
}

// Build implements Config.
func (c *StaticConfig) Build(deps Deps) (discovery.Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	deps = deps.withDefaults("static")
	return &static{again: newAgain(), name: deps.Name, now: deps.Now, instances: instances(c.Brokers, deps.Name)}, nil
}

// instances turns valid brokers into what they are to a pool.
func instances(brokers []StaticBroker, source string) []discovery.Instance {
	out := make([]discovery.Instance, 0, len(brokers))
	for _, b := range brokers {
		in, err := b.instance()
		if err != nil {
			continue // Validate has told
		}
		in.Source = source
		out = append(out, in)
	}
	return out
}

// static says the same list at the start and whenever it is asked.
type static struct {
	again
	name      string
	instances []discovery.Instance
	now       func() time.Time
}

// Name implements discovery.Provider.
func (s *static) Name() string { return s.name }

// Run implements discovery.Provider.
func (s *static) Run(ctx context.Context, publish func(discovery.Update)) error {
	for {
		publish(discovery.Update{Provider: s.name, Instances: s.instances, Explicit: true, At: s.now()})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.again:
		}
	}
}
