package provider

import "github.com/kvip/kvip/discovery"

// ConsulSettings is the top-level `consul:` section.
type ConsulSettings struct {
	// Address is host:port, or a URL with http or https.
	Address string `yaml:"address"`
	// TokenFile holds the ACL token; it is read anew for every query.
	TokenFile  string `yaml:"token_file"`
	Datacenter string `yaml:"datacenter"`
}

// Validate returns every fault, joined; each is a *FieldError.
func (s ConsulSettings) Validate() error { return nil }

// ConsulConfig is `discovery: {type: consul, service: NAME, tags: [...]}`.
type ConsulConfig struct {
	Type    string `yaml:"type"`
	Service string `yaml:"service"`
	// Tags that an entry must all have.
	Tags []string `yaml:"tags"`
}

// Validate implements Config.
func (c *ConsulConfig) Validate() error { return nil }

// Build implements Config.
func (c *ConsulConfig) Build(deps Deps) (discovery.Provider, error) { return nil, nil }
