package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/kvip/kvip/backends"
)

// Verdict is the one line that matters: healthy or not, and the first rule that fails.
func (s Status) Verdict() string {
	if !s.Healthy {
		return "NOT HEALTHY: " + s.Reason
	}
	serving, brokers := 0, 0
	for _, p := range s.Pools {
		for _, m := range p.Members {
			brokers++
			if m.Forwardable {
				serving++
			}
		}
	}
	line := fmt.Sprintf("HEALTHY: %s, %s, %d of %s serving", count(len(s.VIPs), "VIP"), count(len(s.Pools), "pool"), serving, count(brokers, "broker"))
	if len(s.Pools) == 1 {
		p := s.Pools[0]
		line += fmt.Sprintf(", cluster id %s, snapshot %d, %s old", p.ClusterID, p.Snapshot.Generation, seconds(p.Snapshot.AgeSeconds))
	}
	return line
}

// Text shows the status to a person: the verdict, then VIPs, pools and brokers.
func (s Status) Text() string {
	var b strings.Builder
	fmt.Fprintln(&b, s.Verdict())
	fmt.Fprintf(&b, "kvip %s, pid %d, up %s\n", s.Version, s.PID, seconds(s.UptimeSeconds))
	for _, w := range s.Warnings {
		fmt.Fprintln(&b, "warning: "+w)
	}
	var alarms []string
	for _, p := range s.Pools {
		for _, a := range p.Alarms {
			alarms = append(alarms, fmt.Sprintf("alarm: pool %s: %s", p.Pool, a))
		}
	}
	for _, line := range bounded(alarms, "alarms: kvip status --json has them") {
		fmt.Fprintln(&b, line)
	}
	fmt.Fprintf(&b, "\n%s\n\n%s\n", trimRight(s.vipTable().Render()), trimRight(s.poolTable().Render()))
	for _, line := range s.poolNotes() {
		fmt.Fprintln(&b, line)
	}
	fmt.Fprintf(&b, "\n%s", s.BrokersText())
	return b.String()
}

// BrokersText shows the brokers alone: the table, and why whom does not serve.
func (s Status) BrokersText() string {
	var b strings.Builder
	fmt.Fprintln(&b, trimRight(s.brokerTable().Render()))
	for _, line := range s.brokerNotes() {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

func (s Status) vipTable() table.Writer {
	t := newTable("VIP", "address", "pool", "lookup", "state", "connections", "limit")
	for _, v := range s.VIPs {
		t.AppendRow(table.Row{v.Name, v.Listen, v.Pool, v.Lookup, readiness(v.Ready), v.Connections, v.Cap})
	}
	return t
}

func (s Status) poolTable() table.Writer {
	t := newTable("pool", "state", "policy", "cluster id", "brokers", "topics", "partitions", "snapshot", "age", "discovery")
	for _, p := range s.Pools {
		snap := p.Snapshot
		t.AppendRow(table.Row{p.Pool, poolState(p), p.Policy, p.ClusterID, snap.Brokers, snap.Topics, snap.Partitions, snap.Generation, seconds(snap.AgeSeconds), discoveryState(p)})
	}
	return t
}

func (s Status) brokerTable() table.Writer {
	t := newTable("broker", "pool", "node", "rack", "weight", "state", "since", "last check", "ms", "in flight")
	for _, p := range s.Pools {
		for _, m := range p.Members {
			state := m.State
			if m.Reason != "" {
				state += ": " + m.Reason
			}
			since := ""
			if !m.Since.IsZero() {
				since = seconds(s.now().Sub(m.Since).Seconds())
			}
			t.AppendRow(table.Row{m.Broker, p.Pool, node(m.NodeID), m.Rack, m.Weight, state, since, m.LastProbe, fmt.Sprintf("%.1f", m.LastProbeMS), m.InFlight})
		}
	}
	return t
}

// node shows a node id, which is -1 as long as it is not known.
func node(id int32) string {
	if id < 0 {
		return "?"
	}
	return fmt.Sprint(id)
}

func poolState(p backends.Status) string {
	if p.Ready && p.Standby {
		return "standby"
	}
	return readiness(p.Ready)
}

func discoveryState(p backends.Status) string {
	var parts []string
	for _, d := range p.Discovery {
		part := fmt.Sprintf("%s: %d", d.Provider, d.Instances)
		if d.LastError != "" {
			part = d.Provider + ": failing"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

func readiness(ready bool) string {
	if ready {
		return "ready"
	}
	return "not ready"
}

// poolNotes say in a line each what does not fit into a table.
func (s Status) poolNotes() []string {
	var notes []string
	for _, p := range s.Pools {
		if !p.Ready {
			notes = append(notes, fmt.Sprintf("pool %s is not ready: %s", p.Pool, p.Reason))
		}
		for _, d := range p.Discovery {
			if d.LastError != "" {
				last := "it has never answered"
				if !d.LastSuccess.IsZero() {
					last = "its last answer was " + ago(s.now().Sub(d.LastSuccess))
				}
				notes = append(notes, fmt.Sprintf("pool %s: %s has failed for %s, and members stay as they are (%s): %s",
					p.Pool, d.Provider, seconds(s.now().Sub(d.ErrorSince).Seconds()), last, d.LastError))
			}
		}
	}
	var held []string
	for _, p := range s.Pools {
		for _, h := range p.Held {
			held = append(held, fmt.Sprintf("pool %s: %s is in no registry's list, and stays for now: %s", p.Pool, h.Addr, h.Why))
		}
	}
	return append(notes, bounded(held, "that no registry lists")...)
}

// maxNotes bounds what is said of brokers in a line each.
const maxNotes = 20

// bounded cuts a list of lines, and says how many more there are, and of what.
func bounded(lines []string, what string) []string {
	if left := len(lines) - maxNotes; left > 0 {
		lines = append(lines[:maxNotes:maxNotes], strings.TrimSpace(fmt.Sprintf("and %d more %s", left, what)))
	}
	return lines
}

// brokerNotes say why brokers get nothing, or less than their share.
func (s Status) brokerNotes() []string {
	var notes []string
	for _, p := range s.Pools {
		for _, m := range p.Members {
			if why := m.Skipped(); why != "" {
				notes = append(notes, fmt.Sprintf("%s of pool %s: %s", m.Broker, p.Pool, why))
			}
		}
	}
	return bounded(notes, "")
}

// now is when the status was taken.
func (s Status) now() time.Time {
	return s.Started.Add(time.Duration(s.UptimeSeconds * float64(time.Second)))
}

func newTable(columns ...string) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.Options{}
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	header := table.Row{}
	for _, c := range columns {
		header = append(header, c)
	}
	t.AppendHeader(header)
	return t
}

// trimRight drops the padding at the lines' ends.
func trimRight(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}

// seconds shows an age as people say it: 0.4s, 3m12s, 2d4h; "-" when there is none.
func seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case s < 0:
		return "-"
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 24*time.Hour:
		return strings.Replace(d.Round(time.Second).String(), "m0s", "m", 1)
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// ago says how long something is past, in as many characters as a column has.
func ago(d time.Duration) string { return seconds(max(0, d.Round(time.Second).Seconds())) + " ago" }

func count(n int, what string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
