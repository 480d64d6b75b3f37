package provider

import (
	"testing"

	"github.com/hashicorp/consul/api"
)

// A broker that its agent registers as well as kvip pool is one member; what kvip pool takes out of the catalog is its own
// node, never the agent's, whichever is listed first.
func TestABrokerThatIsRegisteredByItsAgentAndByKvipPool(t *testing.T) {
	own := &api.ServiceEntry{
		Node:    &api.Node{Node: "kvip-orders-a-9092", Meta: map[string]string{"external-node": "true", poolMeta: "orders"}},
		Service: &api.AgentService{ID: "kafka-a-9092", Service: "kafka", Address: "a", Port: 9092},
	}
	agents := &api.ServiceEntry{
		Node:    &api.Node{Node: "machine-a"},
		Service: &api.AgentService{ID: "kafka", Service: "kafka", Address: "a", Port: 9092, Tags: []string{"plain"}},
	}
	p := &ConsulPool{pool: "orders", cfg: ConsulConfig{Service: "kafka", Tags: []string{"plain"}}}
	for _, entries := range [][]*api.ServiceEntry{{own, agents}, {agents, own}} {
		all := p.members(entries, nil)
		if len(all) != 1 {
			t.Fatalf("%d members", len(all))
		}
		if m := all[0]; m.Registered != "agent" || m.Skipped != "" || m.node != "kvip-orders-a-9092" {
			t.Errorf("%+v, want the agent's entry, and kvip pool's node to take out", m)
		}
	}
}
