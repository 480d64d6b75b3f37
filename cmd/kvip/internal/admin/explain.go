package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/protocol/front"
)

// Explanation is what a client would get of one pool, and what became of its last connections to the pool's VIPs.
type Explanation struct {
	backends.Explanation
	// LookupForward are the pool's VIPs with `lookup: forward`: at those no list is headed by Head, as the broker of Forward
	// answers lookups.
	LookupForward []string `json:"lookup_forward,omitempty"`
	// LastCloses are newest first: the last few of that address by itself, and the last few for a reason of kvip's. They are
	// kept for as long as not too many other addresses have come since.
	LastCloses []Close `json:"last_closes"`
}

// Close is the end of one connection.
type Close struct {
	VIP string `json:"vip"`
	front.Closed
	// Meaning says for a person what the reason is about, and what to do where something can be done.
	Meaning string `json:"meaning"`
}

// ParseClient reads IP or IP:PORT, an IPv6 address with its port in brackets. Port 0 stands for any.
func ParseClient(s string) (netip.AddrPort, error) {
	if p, err := netip.ParseAddrPort(s); err == nil {
		return p, nil
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("client %.60q is no address: write an IP, with a port if it matters: 10.1.2.3 or 10.1.2.3:40000", s)
	}
	return netip.AddrPortFrom(ip, 0), nil
}

// explain says which broker a client would get of each pool.
func (h *handler) explain(w http.ResponseWriter, r *http.Request) {
	client, err := ParseClient(r.URL.Query().Get("client"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body, err := json.MarshalIndent(h.source.Explain(client), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n'))
}

// ExplainText shows explanations to a person.
func ExplainText(all []Explanation, now time.Time) string {
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "client %s at pool %s\n", e.Client, e.Pool)
		fmt.Fprintf(&b, "  heads its broker list  %s\n", choice(e.Head))
		for _, vip := range e.LookupForward {
			fmt.Fprintf(&b, "  %-22s lookup: forward: the list is as the broker has it that gets its forwards\n", "not at VIP "+vip)
		}
		fmt.Fprintf(&b, "  gets its forwards      %s\n", choice(e.Forward))
		if e.InNeed {
			b.WriteString("  in need: fewer than half of the members pass their probes\n")
		}
		for _, s := range e.Skipped {
			fmt.Fprintf(&b, "  skipped                %s (%s): %s\n", s.Broker, s.State, s.Why)
		}
		for _, c := range e.LastCloses {
			fmt.Fprintf(&b, "  closed %-15s %s: %s; port %d at VIP %s, %s, open for %s\n",
				ago(now.Sub(c.At)), c.Reason, c.Meaning, c.Peer.Port(), c.VIP, count(int(c.Requests), "request"), c.Age)
		}
		if len(e.LastCloses) == 0 {
			b.WriteString("  closed                 nothing is remembered of connections from this address\n")
		}
	}
	return b.String()
}

func choice(c backends.Choice) string {
	if c.Broker == "" {
		return fmt.Sprintf("nobody: %s", c.Why)
	}
	sticky := "may be another one the next time"
	if c.Sticky {
		sticky = "the same one each time"
	}
	rack := ""
	if c.Rack != "" {
		rack = ", rack " + c.Rack
	}
	return fmt.Sprintf("%s (node %s%s): %s: %s; %s", c.Broker, node(c.NodeID), rack, c.Policy, c.Why, sticky)
}
