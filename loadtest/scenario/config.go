// Package scenario is what virtual clients do: which connections they open, what they ask, and when they count as served.
package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/kafka"
)

// Config of a run. Defaults returns one that works.
type Config struct {
	Target   string // host:port of anything that speaks Kafka
	Scenario string // a name of Scenarios
	Clients  int    // virtual clients, spread over the loops
	Loops    int    // threads that generate load

	Warmup   time.Duration // load that is not counted, before the measurement
	Duration time.Duration // of the measurement
	Timeout  time.Duration // of one operation

	Sources     netip.Prefix // clients' addresses; only for loopback targets
	SourceCount int          // addresses per loop; 0: the kernel's choice

	ClientID           string
	Software           kafka.Software
	APIVersionsVersion int16
	MetadataVersion    int16
	Lookup             kafka.Lookup
	ClusterID          string // every answer must name this cluster; "": a connection's first answer decides
	TopicErrors        bool   // errors of topics are no failures

	// Observe, when set, is called right before counting begins (begin true) and right after it has ended.
	Observe func(begin bool)
}

// Defaults returns the configuration of a modern Java client that asks for every topic.
func Defaults() Config {
	return Config{
		Scenario: "kept", Clients: 64, Loops: 1,
		Warmup: time.Second, Duration: 10 * time.Second, Timeout: 5 * time.Second,
		Sources: netip.MustParsePrefix("127.64.0.0/10"), SourceCount: 64,
		ClientID: "kvip-loadtest", Software: kafka.Software{Name: "apache-kafka-java", Version: "4.4.0"},
		APIVersionsVersion: 4, MetadataVersion: 12, Lookup: kafka.Lookup{All: true},
	}
}

// descriptorReserve is what a process needs beside its connections: loops, standard streams, the runtime's own.
const descriptorReserve = 64

// Validate says what is wrong, with what to change; nil when nothing is.
func (c Config) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Target == "" {
		bad("no target: give host:port")
	}
	if Scenarios[c.Scenario] == nil {
		bad("unknown scenario %q: one of %s", c.Scenario, strings.Join(Names(), ", "))
	}
	if c.Loops < 1 || c.Clients < c.Loops {
		bad("%d clients on %d loops: at least one loop, and one client for each", c.Clients, c.Loops)
	}
	if c.Duration <= 0 || c.Timeout <= 0 || c.Warmup < 0 {
		bad("duration %s, timeout %s, warmup %s: the first two must be positive, the last not negative", c.Duration, c.Timeout, c.Warmup)
	}
	if v := c.APIVersionsVersion; v < 0 || v > kafka.MaxAPIVersions {
		bad("ApiVersions v%d: 0 to %d are known", v, kafka.MaxAPIVersions)
	}
	if v := c.MetadataVersion; v < 0 || v > kafka.MaxMetadata {
		bad("Metadata v%d: 0 to %d are known", v, kafka.MaxMetadata)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && uint64(c.Clients+descriptorReserve) > limit.Cur {
		bad("%d clients need %d descriptors and this process may have %d: raise `ulimit -n` or use several processes", c.Clients, c.Clients+descriptorReserve, limit.Cur)
	}
	return errors.Join(faults...)
}

// topics is how many topics an answer must hold; -1: any number.
func (c Config) topics() int {
	if c.Lookup.All || (c.MetadataVersion == 0 && len(c.Lookup.Topics) == 0) {
		return -1
	}
	return len(c.Lookup.Topics)
}

// Names lists the scenarios.
func Names() []string {
	names := make([]string, 0, len(Scenarios))
	for name := range Scenarios {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
