package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/consul/api"
	"go.uber.org/zap"

	"github.com/kvip/kvip/discovery"
)

// Operators' orders are kept in Consul's KV store, for an agent's anti-entropy reverts what is changed of its services in
// the catalog:
//
//	kvip/pools/POOL/members/HOST:PORT   a memberOrder, for as long as there is one
//	kvip/pools/POOL/audit               the last changes, newest first; it also shows that the store has not lost its state
const ordersRoot = "kvip/pools/"

func orderPrefix(pool string) string  { return ordersRoot + pool + "/" }
func memberPrefix(pool string) string { return orderPrefix(pool) + "members/" }
func auditKey(pool string) string     { return orderPrefix(pool) + "audit" }

// memberOrder is what an operator has said of one broker.
type memberOrder struct {
	// Removed keeps it out of the pool whatever the registry lists. Own says that kvip pool alone had registered it, so that
	// no agent will bring it back.
	Removed bool `json:"removed,omitempty"`
	Own     bool `json:"own,omitempty"`
	// Drained gives it weight 0, over Weight.
	Drained bool `json:"drained,omitempty"`
	// Weight holds instead of the registry's; 0: the registry's.
	Weight int       `json:"weight,omitempty"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at,omitzero"`
}

func (o memberOrder) empty() bool { return !o.Removed && !o.Drained && o.Weight == 0 }

// String says an order for a person.
func (o memberOrder) String() string {
	var s []string
	if o.Removed {
		s = append(s, "removed")
	}
	if o.Drained {
		s = append(s, "drained")
	}
	if o.Weight > 0 {
		s = append(s, fmt.Sprintf("weight %d", o.Weight))
	}
	return strings.Join(s, ", ")
}

// ordersName is the provider's name in logs and status.
const ordersName = "operator"

// NewConsulOrders watches what operators have said of a pool's members. What was read last is kept in file and holds from
// the start on, until Consul has answered; file "" keeps nothing.
func NewConsulOrders(pool, file string, deps Deps) (discovery.Provider, error) {
	watch, err := newConsulWatch(deps.withDefaults(ordersName), "KV "+orderPrefix(pool), `key_prefix "`+ordersRoot+`" read`)
	if err != nil {
		return nil, err
	}
	o := &consulOrders{consulWatch: watch, pool: pool, file: file}
	o.query = o.read
	return o, nil
}

// consulOrders is a discovery.Overseer.
type consulOrders struct {
	*consulWatch
	pool, file string
	last       *discovery.Orders
}

// Oversees implements discovery.Overseer.
func (*consulOrders) Oversees() {}

// Run implements discovery.Provider.
func (o *consulOrders) Run(ctx context.Context, publish func(discovery.Update)) error {
	if o.last == nil {
		var at time.Time
		if o.last, at = o.load(); o.last != nil {
			publish(discovery.Update{Provider: o.Name(), Orders: o.last, Stale: true, At: at})
		}
	}
	return o.consulWatch.Run(ctx, publish)
}

// read reads all orders. The leader is asked: an older answer would take back an order for a moment.
func (o *consulOrders) read(q *api.QueryOptions) (discovery.Update, *api.QueryMeta, error) {
	pairs, meta, err := o.client.KV().List(orderPrefix(o.pool), q)
	if err != nil {
		return discovery.Update{}, nil, err
	}
	if meta.ResultsFilteredByACLs {
		return discovery.Update{}, nil, fmt.Errorf("the token may not read all of %s: it needs %s", o.what, o.rights)
	}
	if len(pairs) == 0 && o.last != nil && (len(o.last.Removed) > 0 || len(o.last.Weights) > 0) {
		return discovery.Update{}, nil, fmt.Errorf("%s is gone, the audit trail too: the store has lost its state; the last orders hold until kvip pool is used again", o.what)
	}
	orders := &discovery.Orders{Weights: map[string]int{}}
	for _, p := range pairs {
		addr, ok := strings.CutPrefix(p.Key, memberPrefix(o.pool))
		if !ok {
			continue
		}
		var m memberOrder
		if err := json.Unmarshal(p.Value, &m); err != nil {
			return discovery.Update{}, nil, fmt.Errorf("KV %s cannot be read: %w: delete it, or use kvip pool on that broker", p.Key, err)
		}
		switch {
		case m.Removed:
			orders.Removed = append(orders.Removed, addr)
		case m.Drained:
			orders.Weights[addr] = 0
		case m.Weight > 0:
			orders.Weights[addr] = min(m.Weight, maxWeight)
		}
	}
	slices.Sort(orders.Removed)
	o.last = orders
	at := o.Now()
	o.save(at)
	return discovery.Update{Provider: o.Name(), At: at, Orders: orders}, meta, nil
}

// savedOrders is the file.
type savedOrders struct {
	Pool    string         `json:"pool"`
	Removed []string       `json:"removed"`
	Weights map[string]int `json:"weights"`
}

// load returns what the last run has read last, and when that was.
func (o *consulOrders) load() (*discovery.Orders, time.Time) {
	if o.file == "" {
		return nil, time.Time{}
	}
	info, b, err := readBounded(o.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, time.Time{}
	}
	var s savedOrders
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err == nil && s.Pool != o.pool {
		err = fmt.Errorf("it is of pool %q", s.Pool)
	}
	if err != nil {
		o.Log.Warn("operators' orders of the last run cannot be read", zap.String("file", o.file), zap.Error(err))
		return nil, time.Time{}
	}
	return &discovery.Orders{Removed: s.Removed, Weights: s.Weights}, info.ModTime()
}

func (o *consulOrders) save(at time.Time) {
	if o.file == "" {
		return
	}
	b, err := json.MarshalIndent(savedOrders{Pool: o.pool, Removed: o.last.Removed, Weights: o.last.Weights}, "", "  ")
	if err == nil {
		if _, was, readErr := readBounded(o.file); readErr != nil || !bytes.Equal(was, b) {
			err = renameio.WriteFile(o.file, b, 0o640)
		}
	}
	if err == nil { // the file's time is when Consul has answered last, not when an order has changed
		err = os.Chtimes(o.file, at, at)
	}
	if err != nil {
		o.Log.Warn("operators' orders cannot be saved", zap.String("file", o.file), zap.Error(err))
	}
}
