package backends

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/protocol/forward"
)

// Explanation says which brokers a client would get now, why, and who was skipped for what. `kvip explain` and /explain show
// it.
type Explanation struct {
	Pool   string `json:"pool"`
	Client string `json:"client"`
	// Head is the broker that heads the client's broker list under `lookup: snapshot`; Forward is the one that a new
	// connection's first forwarded request goes to, and under `lookup: forward` its lookups.
	Head    Choice `json:"head"`
	Forward Choice `json:"forward"`
	// Skipped are the members that get less than their share, ascending by address.
	Skipped []Skipped `json:"skipped"`
	// InNeed says that fewer than half of the members pass their probes.
	InNeed bool `json:"in_need,omitempty"`
}

// Choice is one broker that a policy picked.
type Choice struct {
	Policy string `json:"policy"`
	// Broker is the registered host:port, "" when there is none, and NodeID is -1 then.
	Broker string `json:"broker"`
	NodeID int32  `json:"node_id"`
	Rack   string `json:"rack,omitempty"`
	Why    string `json:"why"`
	// Sticky says that the client gets the same broker each time as long as the pool stays as it is.
	Sticky bool `json:"sticky"`
}

// Skipped is a member that gets nothing, or less than its share.
type Skipped struct {
	Broker string `json:"broker"`
	NodeID int32  `json:"node_id"`
	State  string `json:"state"`
	Why    string `json:"why"`
}

// Explain says which broker the client at that address would get. A port of 0 stands for any: only the policy source-hash
// looks at it. Where a policy takes brokers in turn or by chance, it is one that the client could get.
func (p *Pool) Explain(client netip.AddrPort) Explanation {
	v := p.view.Load()
	e := Explanation{Pool: p.cfg.Name, Client: client.Addr().Unmap().String(), InNeed: v.need, Skipped: []Skipped{}}
	if client.Port() != 0 {
		e.Client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port()).String()
	}
	e.Forward = choice(p.cfg.Policy, v.forwardable, v.picker, client, "no broker can be used")
	switch {
	case v.set == nil:
		e.Head = Choice{Policy: p.cfg.Heads, NodeID: -1, Why: "there is no snapshot to answer from: " + why(v, p.report.Load())}
	default:
		e.Head = choice(p.cfg.Heads, v.heads, v.headPicker, client, "no listed broker is known to serve: each listed one heads a list in turn")
	}
	for _, m := range v.members {
		if s := m.status.Load(); s.Skipped() != "" {
			e.Skipped = append(e.Skipped, Skipped{Broker: s.Broker, NodeID: s.NodeID, State: s.State, Why: s.Skipped()})
		}
	}
	return e
}

func choice(name string, members []policy.Member, picker policy.Picker, client netip.AddrPort, none string) Choice {
	decides, key := policy.Policies[name].Key, forward.ClientKey(client)
	c := Choice{Policy: name, NodeID: -1, Why: none, Sticky: decides != nil}
	if len(members) == 0 || picker == nil {
		return c
	}
	i, how := picker.Explain(key)
	m := members[i]
	c.Broker, c.NodeID, c.Rack, c.Why = m.Addr, m.NodeID, m.Rack, how
	if client.Port() == 0 && decides != nil && decides(key) != decides(key+1) {
		c.Sticky = false
		c.Why += "; that is for port 0, and a connection from another port may get another broker: ask for IP:PORT"
	}
	return c
}

// Skipped says why a member gets nothing, or less than its share, "" when it does not.
func (s *MemberStatus) Skipped() string {
	switch State(s.State) {
	case Serving:
		switch {
		case s.SharePercent < 100:
			return fmt.Sprintf("it is new or has come back, and gets %.0f%% of its share of forwards for now", s.SharePercent)
		case !s.Listed:
			return "the snapshot does not list it: it may get forwards, and heads no broker list"
		}
		return ""
	case Trial:
		return fmt.Sprintf("it gets %.0f%% of its share: %s", s.SharePercent, s.Detail)
	case Ejected:
		if s.Until.IsZero() {
			return "ejected: " + s.Detail
		}
		return fmt.Sprintf("ejected until %s: %s", s.Until.Format("15:04:05"), s.Detail)
	case Down:
		return fmt.Sprintf("its probe fails: %s: %s", s.Reason, s.Detail)
	case Quarantined:
		return fmt.Sprintf("it is not what the registry takes it for: %s: %s", s.Reason, s.Detail)
	}
	return cmp.Or(s.Detail, s.State)
}
