package provider

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// byKvip is PoolMember.Registered of a broker that kvip pool has registered.
const byKvip = "kvip pool"

const (
	auditMax = 200 // entries that are kept
	// A tombstone of a broker that kvip pool itself had registered is dropped by the next change after this time.
	tombstoneAge = 24 * time.Hour
	changeTries  = 100 // when others change the same pool: of those that try at once one gets through
	changePause  = 50 * time.Millisecond
	pruneMost    = 20
	poolMeta     = "kvip-pool" // in the meta of nodes that kvip pool add has registered
)

// ConsulPool changes a pool as operators do.
type ConsulPool struct {
	settings ConsulSettings
	client   *api.Client
	own      *http.Transport
	pool     string
	cfg      ConsulConfig
	// Now is the clock of the audit trail.
	Now func() time.Time
}

// OpenConsulPool makes the operator's side of a pool whose brokers are registered as cfg says. Close it.
func OpenConsulPool(pool string, settings ConsulSettings, cfg ConsulConfig) (*ConsulPool, error) {
	if err := errors.Join(settings.Validate(), cfg.Validate()); err != nil {
		return nil, err
	}
	own := newTransport()
	client, err := settings.newClient(own)
	return &ConsulPool{settings: settings, client: client, own: own, pool: pool, cfg: cfg, Now: time.Now}, err
}

// Close ends its connections.
func (p *ConsulPool) Close() { p.own.CloseIdleConnections() }

// PoolMember is one broker as registered, and what operators have said of it.
type PoolMember struct {
	Broker string `json:"broker"`
	// Registered says who registered it: "agent", "kvip pool" (or another writer of the catalog: "catalog"), "" when nobody
	// does and only an order is left.
	Registered string `json:"registered"`
	ID         string `json:"id,omitempty"`
	// Health is Consul's: passing, warning, critical, maintenance; Skipped is why discovery does not take it.
	Health  string `json:"health,omitempty"`
	Skipped string `json:"skipped,omitempty"`
	Rack    string `json:"rack,omitempty"`
	NodeID  int32  `json:"node_id"`
	// RegisteredWeight is the registry's, Weight the one in force.
	RegisteredWeight int  `json:"registered_weight"`
	Weight           int  `json:"weight"`
	Removed          bool `json:"removed"`
	Drained          bool `json:"drained"`
	// Order, By and At are the operator's order, "" when there is none.
	Order string    `json:"order,omitempty"`
	By    string    `json:"by,omitempty"`
	At    time.Time `json:"at,omitzero"`

	node string // the node that kvip pool has registered for it, "" when it has not
}

// takes says that new requests may go to the broker, as far as the registry and operators have a say.
func (m PoolMember) takes() bool {
	return m.Registered != "" && m.Skipped == "" && !m.Removed && m.Weight > 0
}

// over says which of two entries of one broker is shown: the one that discovery takes, else the one that is not kvip
// pool's own.
func (m PoolMember) over(o PoolMember) bool {
	if takes := m.Skipped == ""; takes != (o.Skipped == "") {
		return takes
	}
	return m.node == ""
}

// AuditEntry is one change.
type AuditEntry struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Action string    `json:"action"`
	Broker string    `json:"broker"`
	Before string    `json:"before"`
	After  string    `json:"after"`
}

// PoolState is a pool as the registry and operators have it.
type PoolState struct {
	Pool    string       `json:"pool"`
	Service string       `json:"service"`
	Members []PoolMember `json:"members"`
	Audit   []AuditEntry `json:"audit,omitempty"`

	orders     map[string]memberOrder
	unreadable map[string]bool   // orders that are in the way until they are written anew
	indexes    map[string]uint64 // ModifyIndex of members' keys
	auditIndex uint64
}

func (p *ConsulPool) options(ctx context.Context) (*api.QueryOptions, *api.WriteOptions, error) {
	token, err := p.settings.token()
	if err != nil {
		return nil, nil, fmt.Errorf("consul.token_file: %w", err)
	}
	return (&api.QueryOptions{Token: token}).WithContext(ctx), (&api.WriteOptions{Token: token}).WithContext(ctx), nil
}

// State reads the pool.
func (p *ConsulPool) State(ctx context.Context) (*PoolState, error) {
	q, _, err := p.options(ctx)
	if err != nil {
		return nil, err
	}
	entries, meta, err := p.client.Health().Service(p.cfg.Service, "", false, q)
	if err == nil && meta.ResultsFilteredByACLs {
		err = fmt.Errorf("the token may not see all of service %q: it needs service:read on it and node:read on its nodes", p.cfg.Service)
	}
	if err != nil {
		return nil, explainConsul(err, p.settings, fmt.Sprintf("service %q", p.cfg.Service), "service:read on it and node:read on its nodes")
	}
	pairs, meta, err := p.client.KV().List(orderPrefix(p.pool), q)
	if err == nil && meta.ResultsFilteredByACLs {
		err = fmt.Errorf("the token may not read all of KV %s", orderPrefix(p.pool))
	}
	if err != nil {
		return nil, explainConsul(err, p.settings, "KV "+orderPrefix(p.pool), `key_prefix "`+ordersRoot+`" read`)
	}
	s := &PoolState{Pool: p.pool, Service: p.cfg.Service, Members: []PoolMember{}, orders: map[string]memberOrder{}, indexes: map[string]uint64{}, unreadable: map[string]bool{}}
	s.readOrders(pairs)
	s.Members = append(s.Members, p.members(entries, s.orders)...)
	return s, nil
}

func (s *PoolState) readOrders(pairs api.KVPairs) {
	for _, pair := range pairs {
		var target any = &s.Audit
		addr, isMember := strings.CutPrefix(pair.Key, memberPrefix(s.Pool))
		var order memberOrder
		switch {
		case isMember:
			target = &order
		case pair.Key == auditKey(s.Pool):
			s.auditIndex = pair.ModifyIndex
		default:
			continue
		}
		// What cannot be read is written anew by the next change of it.
		err := json.Unmarshal(pair.Value, target)
		if isMember {
			s.orders[addr], s.indexes[addr], s.unreadable[addr] = order, pair.ModifyIndex, err != nil
		}
	}
}

// members joins what is registered with what was ordered, by address.
func (p *ConsulPool) members(entries []*api.ServiceEntry, orders map[string]memberOrder) []PoolMember {
	byAddr := map[string]PoolMember{}
	reader := &consul{consulWatch: &consulWatch{Deps: Deps{}.withDefaults("consul")}, cfg: p.cfg, warned: map[string]string{}}
	for _, e := range entries {
		if e == nil || e.Service == nil || e.Node == nil {
			continue
		}
		in, reason := reader.instance(e)
		m := PoolMember{
			Broker: in.Addr(), ID: in.ID, Health: e.Checks.AggregatedStatus(), Skipped: reason, Rack: in.Rack, NodeID: in.NodeID,
			RegisteredWeight: in.Weight, Weight: in.Weight, Registered: "agent",
		}
		switch {
		case e.Node.Meta[poolMeta] == p.pool:
			m.Registered, m.node = byKvip, e.Node.Node
		case e.Node.Meta["external-node"] == "true":
			m.Registered = "catalog"
		}
		if was, dup := byAddr[m.Broker]; dup {
			if was.over(m) {
				was, m = m, was
			}
			m.node = cmp.Or(m.node, was.node)
		}
		byAddr[m.Broker] = m
	}
	for addr, o := range orders {
		m, ok := byAddr[addr]
		if !ok {
			m = PoolMember{Broker: addr, NodeID: -1}
		}
		m.Removed, m.Drained, m.Order, m.By, m.At = o.Removed, o.Drained, o.String(), o.By, o.At
		switch {
		case o.Removed || o.Drained:
			m.Weight = 0
		case o.Weight > 0:
			m.Weight = o.Weight
		}
		byAddr[addr] = m
	}
	return slices.SortedFunc(maps.Values(byAddr), func(a, b PoolMember) int { return strings.Compare(a.Broker, b.Broker) })
}

// PoolChange is one thing that an operator does.
type PoolChange struct {
	// Action is add, remove, drain, undrain or weight.
	Action string
	// Broker is host:port as registered.
	Broker string
	// Weight is of add (0: 1) and weight (0: back to the registry's).
	Weight int
	// Rack, NodeID ("" unknown) and Tags are of add.
	Rack, NodeID string
	Tags         []string
	// By is who does it.
	By string
	// Force lets a broker be ordered that is not registered, and the last one that takes requests go.
	Force  bool
	DryRun bool
}

// PoolResult is what a change did, or would do.
type PoolResult struct {
	Pool    string `json:"pool"`
	Action  string `json:"action"`
	Broker  string `json:"broker"`
	DryRun  bool   `json:"dry_run"`
	Changed bool   `json:"changed"`
	Before  string `json:"before"`
	After   string `json:"after"`
	// Notes say what was done, and what is left to do.
	Notes []string `json:"notes"`
}

// UsageError is a change that cannot be meant.
type UsageError struct{ error }

func usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Change does what c says, or finds out why not. Changes of several operators at a time are all done, one after the other.
func (p *ConsulPool) Change(ctx context.Context, c PoolChange) (PoolResult, error) {
	host, port, err := splitAddr(c.Broker)
	if err != nil {
		return PoolResult{}, usagef("%w: write the broker as registered, like kafka-1.example.com:9092", err)
	}
	b := endpoint{host, port}
	c.Broker = b.addr()
	if c.Weight < 0 || c.Weight > maxWeight {
		return PoolResult{}, usagef("weight %d: write 1 to %d; drain takes a broker out", c.Weight, maxWeight)
	}
	if n, err := strconv.ParseInt(cmp.Or(c.NodeID, "0"), 10, 32); err != nil || n < 0 {
		return PoolResult{}, usagef("node id %q: write the broker's node.id", c.NodeID)
	}
	added := false
	for try := range changeTries {
		res, again, err := p.try(ctx, b, c, &added)
		if err != nil || !again {
			return res, err
		}
		select {
		case <-ctx.Done():
			return res, ctx.Err()
		case <-time.After(rand.N(min(time.Duration(try+1)*changePause/5, changePause))):
		}
	}
	return PoolResult{}, errors.New("others change this pool all the time: try again")
}

type endpoint struct {
	host string
	port int
}

func (e endpoint) addr() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

// try does a change once; again says that somebody else was quicker, added that the broker has been registered by then.
func (p *ConsulPool) try(ctx context.Context, b endpoint, c PoolChange, added *bool) (res PoolResult, again bool, err error) {
	s, err := p.State(ctx)
	if err != nil {
		return res, false, err
	}
	res = PoolResult{Pool: p.pool, Action: c.Action, Broker: c.Broker, DryRun: c.DryRun, Notes: []string{}}
	i := slices.IndexFunc(s.Members, func(m PoolMember) bool { return m.Broker == c.Broker })
	m := PoolMember{Broker: c.Broker, NodeID: -1}
	if i >= 0 {
		m = s.Members[i]
	}
	if *added && m.Registered == byKvip {
		m.Registered, m.node = "", ""
	}
	order, err := s.ordered(m, c)
	if err != nil {
		return res, false, err
	}
	had := s.orders[c.Broker]
	res.Before, res.After = describe(m, had), describe(m, order)
	register := c.Action == "add" && (m.Registered == "" || m.Registered == byKvip)
	deregister := c.Action == "remove" && m.node != ""
	switch {
	case deregister && m.Registered == byKvip:
		res.After = describe(PoolMember{}, order)
	case register:
		res.After = "registered by " + byKvip
		if m.Registered != "" {
			res.Notes = append(res.Notes, "it is registered by kvip pool already: it is registered anew")
		}
	}
	res.Notes = append(res.Notes, notes(m, c)...)
	order.By, order.At = had.By, had.At
	res.Changed = register || deregister || order != had || s.unreadable[c.Broker]
	if !res.Changed || c.DryRun {
		return res, false, nil
	}
	order.By, order.At = c.By, p.Now().UTC()
	_, w, err := p.options(ctx)
	if err != nil {
		return res, false, err
	}
	// A registration comes before its tombstone goes. A node goes together with the order: what somebody else has added
	// meanwhile is not this change's to take out.
	if register {
		if err := p.register(b, c, w); err != nil {
			return res, false, err
		}
		*added = true
	}
	gone := ""
	if deregister {
		gone = m.node
	}
	done, err := p.write(ctx, s, c, order, res, gone)
	return res, !done && err == nil, err
}

// ordered is the order for m after c, or why c is refused.
func (s *PoolState) ordered(m PoolMember, c PoolChange) (memberOrder, error) {
	order := s.orders[m.Broker]
	if m.Registered == "" && c.Action != "add" && !c.Force && order.empty() {
		var known []string
		for _, o := range s.Members {
			if o.Registered != "" {
				known = append(known, o.Broker)
			}
		}
		return order, usagef("%s is not registered as %s: registered are %s (--force orders it all the same)", m.Broker, s.Service, strings.Join(known, ", "))
	}
	if order.Removed && (c.Action == "drain" || c.Action == "undrain" || c.Action == "weight") {
		return order, usagef("%s was removed by %s: kvip pool add takes it back first", m.Broker, order.By)
	}
	switch c.Action {
	case "add":
		order = memberOrder{}
	case "remove":
		order = memberOrder{Removed: true, Own: m.Registered == byKvip || m.Registered == "" && order.Own}
	case "drain":
		order.Drained = true
	case "undrain":
		order.Drained = false
	case "weight":
		order.Weight = c.Weight
	default:
		return order, usagef("no action is called %q", c.Action)
	}
	others := slices.ContainsFunc(s.Members, func(o PoolMember) bool { return o.Broker != m.Broker && o.takes() })
	if m.takes() && (order.Removed || order.Drained) && !others && !c.Force {
		return order, fmt.Errorf("%s is the last broker of pool %s that takes requests: add or undrain another one first (--force does it all the same; kvip itself keeps the last member)", m.Broker, s.Pool)
	}
	return order, nil
}

// describe says what a broker is.
func describe(m PoolMember, o memberOrder) string {
	var s []string
	if m.Registered != "" {
		s = append(s, "registered by "+m.Registered)
	} else {
		s = append(s, "not registered")
	}
	if text := o.String(); text != "" {
		s = append(s, text)
	}
	return strings.Join(s, ", ")
}

// notes say what an operator should know.
func notes(m PoolMember, c PoolChange) (out []string) {
	switch {
	case c.Action == "remove" && m.Registered != "" && m.Registered != byKvip:
		out = append(out, fmt.Sprintf("its %s still registers it (%s): it stays out until kvip pool add; deregister it there, too", m.Registered, m.ID))
	case c.Action == "add" && m.Registered != "" && m.Registered != byKvip:
		out = append(out, fmt.Sprintf("it is registered by its %s (%s): only the orders against it are lifted", m.Registered, m.ID))
	case c.Action == "weight" && m.Drained:
		out = append(out, "it is drained: the weight counts after kvip pool undrain")
	}
	if m.Skipped != "" && c.Action != "remove" {
		out = append(out, fmt.Sprintf("discovery does not take its entry: %s", m.Skipped))
	}
	return out
}
