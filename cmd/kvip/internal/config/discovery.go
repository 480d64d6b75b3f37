package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/discovery/provider"
)

// Discovery is where a pool's members are registered: one registry, or a list of them to merge.
type Discovery []Source

// Source is one registry: the keys that all have, and those of its type.
type Source struct {
	SourceKeys
	// Provider is the type's own section, from provider.Registry; nil when the type is not known.
	Provider provider.Config
}

// SourceKeys are the keys that every discovery type has.
type SourceKeys struct {
	// Type is a key of provider.Registry.
	Type string `yaml:"type"`
	// ShrinkHold is how long a member is kept after the registry has dropped it without a word; the longest of a list
	// counts for the pool.
	ShrinkHold time.Duration `yaml:"shrink_hold"`
}

// ShrinkHold is the longest of the sources'.
func (d Discovery) ShrinkHold() time.Duration {
	var hold time.Duration
	for _, s := range d {
		hold = max(hold, s.ShrinkHold)
	}
	return hold
}

// Consul returns the first source that is a Consul service, nil when none is.
func (d Discovery) Consul() *provider.ConsulConfig {
	for _, s := range d {
		if c, ok := s.Provider.(*provider.ConsulConfig); ok {
			return c
		}
	}
	return nil
}

// decodeNode takes one source or a list of them.
func (d *Discovery) decodeNode(dec *decoder, path string, n ast.Node) {
	if list, ok := n.(*ast.SequenceNode); ok {
		dec.decodeList(path, list, reflect.ValueOf((*[]Source)(d)).Elem())
		return
	}
	*d = make(Discovery, 1)
	(*d)[0].decodeNode(dec, path, n)
}

// decodeNode reads the type first, for it says which other keys there are.
func (s *Source) decodeNode(d *decoder, path string, n ast.Node) {
	s.ShrinkHold = backends.DefaultConfig().ShrinkHold
	keys := reflect.ValueOf(&s.SourceKeys).Elem()
	pairs, ok := d.pairs(path, n)
	if !ok {
		d.fault(path, first(n), "a mapping with a type is expected here", "write {type: static, brokers: [host:9092]}")
		return
	}
	i := slices.IndexFunc(pairs, func(p *ast.MappingValueNode) bool { return p.Key.GetToken().Value == "type" })
	if i < 0 {
		d.fault(path, first(n), "a discovery without a type", "add type: "+oneOf(discoveryTypes()))
		return
	}
	typeNode, ok := d.resolve(path, pairs[i].Value)
	if !ok {
		return
	}
	name, _ := scalar(typeNode)
	entry, ok := provider.Registry[name]
	if !ok {
		tok := d.valueToken(pairs[i].Value, pairs[i].Key.GetToken())
		d.fault(path, tok, "unknown discovery type "+quote(name), meant(name, discoveryTypes()))
		return
	}
	s.Provider = entry.NewConfig()
	d.decodeMapping(path, n, keys, reflect.ValueOf(s.Provider).Elem())
}

// discovery checks a pool's sources, each by its own rules.
func (v *validator) discovery(path string, ds Discovery) {
	path += ".discovery"
	if len(ds) == 0 {
		v.error(path, "a pool without discovery", "add discovery: {type: static, brokers: [host:9092]}, or another type: "+oneOf(discoveryTypes()))
		return
	}
	for i, s := range ds {
		sub := v.sourcePath(path, i)
		if s.Provider == nil {
			continue // told while decoding
		}
		v.between(sub+".shrink_hold", s.ShrinkHold, time.Second, 24*time.Hour)
		v.fieldErrors(sub, s.Provider.Validate())
	}
}

// sourcePath is the path of a pool's i-th source: without an index where the file has no list.
func (v *validator) sourcePath(path string, i int) string {
	if sub := fmt.Sprintf("%s[%d]", path, i); v.places[sub].value != nil {
		return sub
	}
	return path
}

// fieldErrors reports what a section's own rules found, each at its field.
func (v *validator) fieldErrors(path string, err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			v.fieldErrors(path, e)
		}
		return
	}
	var fe *provider.FieldError
	if errors.As(err, &fe) {
		v.error(join(path, fe.Field), fe.Problem, fe.Fix)
		return
	}
	v.error(path, err.Error(), "")
}

// staticBroker is an address that the file itself names as a broker's.
type staticBroker struct{ path, address string }

// staticBrokers lists the brokers of static sources, and the seeds of others.
func (v *validator) staticBrokers(path string, ds Discovery) []staticBroker {
	var all []staticBroker
	for i, s := range ds {
		switch p := s.Provider.(type) {
		case *provider.StaticConfig:
			for j, b := range p.Brokers {
				all = append(all, staticBroker{fmt.Sprintf("%s.brokers[%d]", v.sourcePath(path, i), j), b.Address})
			}
		case *provider.KafkaConfig:
			for j, seed := range p.Seeds {
				all = append(all, staticBroker{fmt.Sprintf("%s.seeds[%d]", v.sourcePath(path, i), j), seed})
			}
		}
	}
	return all
}

// MarshalYAML writes a source as one mapping again.
func (s Source) MarshalYAML() (any, error) {
	out := yaml.MapSlice{}
	for _, f := range fields(reflect.ValueOf(s.SourceKeys), reflect.ValueOf(s.Provider).Elem()) {
		if !slices.ContainsFunc(out, func(i yaml.MapItem) bool { return i.Key == f.name }) {
			out = append(out, yaml.MapItem{Key: f.name, Value: f.value.Interface()})
		}
	}
	return out, nil
}

func discoveryTypes() []string { return slices.Sorted(maps.Keys(provider.Registry)) }

// Redacted returns a copy without secrets, fit for logs and reports.
func (c Config) Redacted() Config {
	// Tokens are in files, never in kvip.yaml; what may hide one is the user part of a URL.
	if scheme, rest, ok := strings.Cut(c.Consul.Address, "://"); ok {
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			c.Consul.Address = scheme + "://REDACTED@" + rest[i+1:]
		}
	}
	return c
}
