package provider

import "github.com/kvip/kvip/discovery"

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

// Validate implements Config.
func (c *StaticConfig) Validate() error { return nil }

// Build implements Config.
func (c *StaticConfig) Build(deps Deps) (discovery.Provider, error) { return nil, nil }
