package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
)

// register puts the broker into the catalog as a node of its own, which no agent knows and reverts.
func (p *ConsulPool) register(b endpoint, c PoolChange, w *api.WriteOptions) error {
	meta := map[string]string{}
	if c.Rack != "" {
		meta["rack"] = c.Rack
	}
	if c.NodeID != "" {
		meta["node_id"] = c.NodeID
	}
	weight := max(c.Weight, 1)
	node := "kvip-" + p.pool + "-" + nodeName(c.Broker)
	_, err := p.client.Catalog().Register(&api.CatalogRegistration{
		Node: node, Address: b.host, NodeMeta: map[string]string{"external-node": "true", "external-probe": "false", poolMeta: p.pool},
		Service: &api.AgentService{
			ID: p.cfg.Service + "-" + nodeName(c.Broker), Service: p.cfg.Service, Address: b.host, Port: b.port, Meta: meta,
			Tags: slices.Concat(p.cfg.Tags, c.Tags), Weights: api.AgentWeights{Passing: weight, Warning: weight},
		},
	}, w)
	if err != nil {
		return explainConsul(err, p.settings, "the catalog", fmt.Sprintf(`service %q write and node_prefix "kvip-" write`, p.cfg.Service))
	}
	return nil
}

// nodeName writes an address as a name.
func nodeName(addr string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r == '.' || r == ':' || r == '[' || r == ']' {
			return '-'
		}
		return r
	}, addr), "-")
}

// write puts an order and its line in the audit trail, and takes the node gone out of the catalog unless it is "": all of
// it or nothing. done is false when somebody else was quicker.
func (p *ConsulPool) write(ctx context.Context, s *PoolState, c PoolChange, order memberOrder, res PoolResult, gone string) (done bool, err error) {
	q, _, err := p.options(ctx)
	if err != nil {
		return false, err
	}
	put := func(key string, index uint64, v any) (*api.TxnOp, error) {
		b, err := json.Marshal(v)
		return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVCAS, Key: key, Value: b, Index: index}}, err
	}
	drop := func(key string, index uint64) *api.TxnOp {
		return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDeleteCAS, Key: key, Index: index}}
	}
	audit := append([]AuditEntry{{At: order.At, By: c.By, Action: action(c), Broker: c.Broker, Before: res.Before, After: res.After}}, s.Audit...)
	op, err := put(auditKey(p.pool), s.auditIndex, audit[:min(len(audit), auditMax)])
	if err != nil {
		return false, err
	}
	ops := api.TxnOps{op}
	key := memberPrefix(p.pool) + c.Broker
	index, have := s.indexes[c.Broker]
	switch {
	case !order.empty():
		op, err := put(key, index, order)
		if err != nil {
			return false, err
		}
		ops = append(ops, op)
	case have:
		ops = append(ops, drop(key, index))
	}
	for _, m := range s.Members {
		if m.Broker != c.Broker && m.Registered == "" && s.orders[m.Broker].Own && p.Now().Sub(m.At) > tombstoneAge && len(ops) < pruneMost {
			ops = append(ops, drop(memberPrefix(p.pool)+m.Broker, s.indexes[m.Broker]))
		}
	}
	if gone != "" {
		ops = append(ops, &api.TxnOp{Node: &api.NodeTxnOp{Verb: api.NodeDelete, Node: api.Node{Node: gone}}})
	}
	ok, resp, _, err := p.client.Txn().Txn(ops, q)
	if err != nil {
		return false, explainConsul(err, p.settings, "KV "+orderPrefix(p.pool), `key_prefix "`+ordersRoot+`" write`)
	}
	if ok {
		return true, nil
	}
	for _, e := range resp.Errors {
		if strings.Contains(strings.ToLower(e.What), "permission denied") {
			return false, fmt.Errorf(`consul refuses the change of KV %s: the token needs key_prefix %q write, and node_prefix "kvip-" write`, orderPrefix(p.pool), ordersRoot)
		}
	}
	return false, nil
}

// action says what was done, with its value.
func action(c PoolChange) string {
	switch {
	case c.Action == "weight" && c.Weight == 0:
		return "weight default"
	case c.Action == "weight":
		return fmt.Sprintf("weight %d", c.Weight)
	}
	return c.Action
}
