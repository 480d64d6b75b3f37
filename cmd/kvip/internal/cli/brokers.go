package cli

import (
	"fmt"

	"github.com/kvip/kvip/backends"
)

type brokersCommand struct {
	adminFlags `embed:""`
	Pool       string `arg:"" optional:"" help:"Only this pool." placeholder:"POOL"`
	Raw        bool   `help:"Print one line a broker, its values divided by tabs, for scripts."`
	JSON       bool   `name:"json" help:"Print the brokers as JSON."`
}

// rawColumns are --raw's, which only grow at the end.
const rawColumns = "broker\tpool\tnode\track\tweight\tstate\treason\tlast_probe\tlast_probe_ms\tin_flight"

// Run prints the brokers of a running kvip.
func (c *brokersCommand) Run(s streams) error {
	st, _, err := c.status()
	if err != nil {
		return err
	}
	if c.Pool != "" {
		var only []backends.Status
		for _, p := range st.Pools {
			if p.Pool == c.Pool {
				only = append(only, p)
			}
		}
		if only == nil {
			return &exitError{exitUsage, fmt.Errorf("that kvip has no pool %q", c.Pool)}
		}
		st.Pools = only
	}
	switch {
	case c.JSON:
		type broker struct {
			Pool string `json:"pool"`
			backends.MemberStatus
		}
		all := []broker{}
		for _, p := range st.Pools {
			for _, m := range p.Members {
				all = append(all, broker{p.Pool, m})
			}
		}
		return writeJSON(s.out, all)
	case c.Raw:
		fmt.Fprintln(s.out, rawColumns)
		for _, p := range st.Pools {
			for _, m := range p.Members {
				fmt.Fprintf(s.out, "%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\t%.1f\t%d\n",
					m.Broker, p.Pool, m.NodeID, m.Rack, m.Weight, m.State, m.Reason, m.LastProbe, m.LastProbeMS, m.InFlight)
			}
		}
		return nil
	}
	fmt.Fprint(s.out, st.BrokersText())
	return nil
}
