// Package kernel reads the machine's own counters of what it dropped and sent again: connections that a full queue cost,
// which no server notices.
package kernel

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// watched are the counters that explain a bad bootstrap, from /proc/net/netstat and /proc/net/snmp.
var watched = map[string]bool{
	"TcpExt:ListenOverflows":  true, // accept queue full: connection dropped
	"TcpExt:ListenDrops":      true, // dropped for that, or for want of memory
	"TcpExt:TCPSynRetrans":    true, // SYN or SYN-ACK sent again: a client waited 1 s or more
	"TcpExt:TCPReqQFullDrop":  true, // SYN queue full
	"TcpExt:SyncookiesSent":   true,
	"TcpExt:TCPAbortOnMemory": true,
	"TcpExt:TCPTimeouts":      true,
	"Tcp:RetransSegs":         true,
}

// Counters are values by name, since the machine's start.
type Counters map[string]uint64

// Read reads the counters of this network namespace. It needs no privilege.
func Read() (Counters, error) {
	c := Counters{}
	for _, path := range []string{"/proc/net/netstat", "/proc/net/snmp"} {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("kernel counters: %w", err)
		}
		err = c.parse(f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return c, nil
}

// parse reads pairs of lines: "TcpExt: names", "TcpExt: values".
func (c Counters) parse(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		names := strings.Fields(lines.Text())
		if !lines.Scan() {
			return fmt.Errorf("no values for %q", names)
		}
		values := strings.Fields(lines.Text())
		if len(names) != len(values) || len(names) == 0 || names[0] != values[0] {
			return fmt.Errorf("%d names and %d values", len(names), len(values))
		}
		for i, name := range names[1:] {
			if !watched[names[0]+name] {
				continue
			}
			n, err := strconv.ParseUint(values[i+1], 10, 64)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			c[name] = n
		}
	}
	return lines.Err()
}

// Since is by how much the counters have grown; those that have not are left out.
func (c Counters) Since(earlier Counters) Counters {
	grown := Counters{}
	for name, n := range c {
		if before := earlier[name]; n > before {
			grown[name] = n - before
		}
	}
	return grown
}

// Add adds counters to c.
func (c Counters) Add(more Counters) {
	for name, n := range more {
		c[name] += n
	}
}
