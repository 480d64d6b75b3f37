package run

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/cmd/kvip/internal/admin"
	"github.com/kvip/kvip/cmd/kvip/internal/config"
)

// The parts of the reserve: descriptors that the process needs whatever its VIPs do.
const (
	// baseDescriptors: standard streams, the runtime's poller, the binary's own needs (log, state files, name lookups).
	baseDescriptors = 16
	// loopDescriptors: poller, wake-up and listener of one event loop.
	loopDescriptors = 3
	// A VIP with fewer connections than minConnections is useless, below warnConnections it is cramped.
	minConnections  = 16
	warnConnections = 1000
)

// budget divides the process's limit of open files. The event loops must never meet that limit: accept failing with
// EMFILE ends them all (gnet), so what cannot be held back is reserved and the rest is what the VIPs may accept.
type budget struct {
	limit, reserve int
	// caps are the most connections of each VIP, in the configuration's order.
	caps     []int
	warnings []string
}

// needs is what a budget is made for.
type needs struct {
	// pools has the descriptors that each pool may hold.
	pools []int
	// loops is how many event loops each VIP runs.
	loops int
	vips  []config.VIP
}

// openFilesLimit returns the soft RLIMIT_NOFILE, which the Go runtime has raised to the hard one at the start.
func openFilesLimit() (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("reading the limit of open files: %w", err)
	}
	return int(min(l.Cur, 1<<30)), nil
}

// divide splits limit, and refuses when it is too small for what is configured.
func divide(limit int, n needs) (budget, error) {
	b := budget{limit: limit, reserve: baseDescriptors + admin.MaxConns + 1 + len(n.vips)*n.loops*loopDescriptors}
	for _, p := range n.pools {
		b.reserve += p
	}
	rest, shared := limit-b.reserve, 0
	needed := b.reserve
	for _, v := range n.vips {
		rest -= v.Limits.Connections
		needed += max(v.Limits.Connections, minConnections)
		if v.Limits.Connections == 0 {
			shared++
		}
	}
	share := 0
	if shared > 0 {
		share = rest / shared
	}
	if rest < 0 || shared > 0 && share < minConnections {
		return b, fmt.Errorf("the limit of open files is %d, but %d are kept for pools, admin and event loops, and with %d for the connections of %s at least %d are needed: raise it (ulimit -n %d, or LimitNOFILE= in the systemd unit), or lower vips[].limits.connections or pools[].max_upstream",
			limit, b.reserve, needed-b.reserve, plural(len(n.vips), "VIP"), needed, max(needed, 65536))
	}
	for _, v := range n.vips {
		most := v.Limits.Connections
		if most == 0 {
			most = share
		}
		b.caps = append(b.caps, most)
		if most < warnConnections && v.Limits.Connections == 0 {
			b.warnings = append(b.warnings, fmt.Sprintf("vip %s may hold %d connections only: the limit of open files is %d, of which %d are reserved; raise it (ulimit -n, LimitNOFILE=)", v.Name, most, limit, b.reserve))
		}
	}
	return b, nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
