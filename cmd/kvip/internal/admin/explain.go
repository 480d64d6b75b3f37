package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/kvip/kvip/backends"
)

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
func ExplainText(all []backends.Explanation) string {
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "client %s at pool %s\n", e.Client, e.Pool)
		fmt.Fprintf(&b, "  heads its broker list  %s\n", choice(e.Head))
		fmt.Fprintf(&b, "  gets its forwards      %s\n", choice(e.Forward))
		if e.InNeed {
			b.WriteString("  in need: fewer than half of the members pass their probes\n")
		}
		for _, s := range e.Skipped {
			fmt.Fprintf(&b, "  skipped                %s (%s): %s\n", s.Broker, s.State, s.Why)
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
	return fmt.Sprintf("%s (node %d%s): %s: %s; %s", c.Broker, c.NodeID, rack, c.Policy, c.Why, sticky)
}
