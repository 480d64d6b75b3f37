// Package scenario is what virtual clients do: which connections they open, what they ask, when they count as served; and
// the run that drives them.
package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/schedule"
)

// Config of a run. Defaults returns one that works.
type Config struct {
	Target   string // host:port of anything that speaks Kafka
	Scenario string // a name of Scenarios
	Clients  int    // virtual clients, spread over the loops
	Loops    int    // threads that generate load

	// Rate is when operations begin, whatever the target does: an open loop. Nil: a closed loop, in which each client
	// begins an operation when its last one has ended.
	Rate    *schedule.Profile
	Arrival schedule.Arrival
	Seed    uint64
	// Part of Parts processes that share a load; each has Clients of its own and its share of Rate.
	Part, Parts int

	Warmup   time.Duration // load that is not counted, before the measurement
	Duration time.Duration // of the measurement; with Rate it is the profile's length
	Window   time.Duration // slices of the measurement
	Timeout  time.Duration // of one operation

	Sources     netip.Prefix // clients' addresses; only for loopback targets
	SourceCount int          // addresses per loop; 0: the kernel's choice

	ClientID           string
	Software           kafka.Software
	APIVersionsVersion int16
	MetadataVersion    int16
	Lookup             kafka.Lookup
	ClusterID          string        // every answer must name this cluster; "": a connection's first answer decides
	TopicErrors        bool          // errors of topics are no failures
	EpochGrace         time.Duration // how long after one client's answer another one's may have older epochs

	// Asks are what a storm's bootstraps ask for after ApiVersions, by weight: names of AskNames, with a version behind an @
	// if need be. Draw is how many requests each draws. None: each looks up Lookup.
	Asks []Share
	Draw int
	// Truth, when set, is what answers are held against; who made it runs it.
	Truth *check.Truth

	DialBrokers bool // storm: connect to every advertised broker, too
	Remote      bool // brokers that are not on the loopback may be dialled

	Libraries []Share       // steady, reconnect, rebootstrap: who the clients are
	Mix       []Share       // mixed: scenarios
	Pace      float64       // steady: how much faster than real time goes by
	Every     time.Duration // reconnect, rebootstrap: from one wave to the next
	Spread    time.Duration // rebootstrap: within which a wave's clients come
	ReadRate  int           // slowreader: bytes per second

	// Observe, when set, is called right before counting begins (begin true) and right after it has ended.
	Observe func(begin bool)
	// Progress, when set, is called at the end of each window with what was counted so far, late answers excepted.
	Progress func(Progress)
}

// Progress is how far a measurement is.
type Progress struct {
	Since    time.Duration // its begin
	Answered uint64
	Failed   uint64
	Local    uint64
	Open     int // connections
	P99      time.Duration
}

// Share is a name with its part of the whole.
type Share struct {
	Name   string
	Weight int
}

// ParseShares reads "java=4,kafka-go" : names with weights; 1 when none is given.
func ParseShares(text string) ([]Share, error) {
	var shares []Share
	for part := range strings.SplitSeq(text, ",") {
		s := Share{Weight: 1}
		name, weight, ok := strings.Cut(strings.TrimSpace(part), "=")
		s.Name = name
		if ok {
			if _, err := fmt.Sscanf(weight, "%d", &s.Weight); err != nil || s.Weight < 1 || s.Weight > 1000 {
				return nil, fmt.Errorf("%q: a weight is a number from 1 to 1000, as in java=4,kafka-go=1", part)
			}
		}
		if name == "" {
			return nil, fmt.Errorf("%q: want names with weights, as in java=4,kafka-go=1", text)
		}
		shares = append(shares, s)
	}
	return shares, nil
}

// Defaults returns the configuration of a modern Java client that asks for every topic, in a closed loop.
func Defaults() Config {
	return Config{
		Scenario: "kept", Clients: 64, Loops: 1, Arrival: schedule.Poisson, Seed: 1, Parts: 1,
		Warmup: time.Second, Duration: 10 * time.Second, Window: time.Second, Timeout: 5 * time.Second,
		Sources: netip.MustParsePrefix("127.64.0.0/10"), SourceCount: 64,
		ClientID: "kvip-loadtest", Software: kafka.Software{Name: "apache-kafka-java", Version: "4.4.0"},
		APIVersionsVersion: 4, MetadataVersion: 12, Lookup: kafka.Lookup{All: true},
		Libraries: []Share{{"java", 4}, {"librdkafka", 2}, {"kafka-go", 1}, {"sarama", 1}, {"kafkajs", 1}, {"kafka-python", 1}},
		Mix:       []Share{{"kept", 8}, {"storm", 4}, {"slowreader", 1}, {"hostile", 1}},
		Draw:      2, Pace: 1, Every: 10 * time.Second, Spread: time.Second, ReadRate: 64 << 10,
	}
}

// descriptorReserve is what a process needs beside its connections: loops, standard streams, the runtime's own.
const descriptorReserve = 64

// MaxClients is how many clients this process has descriptors for.
func MaxClients() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return max(0, int(limit.Cur)-descriptorReserve)
}

// Validate says what is wrong, with what to change; nil when nothing is.
func (c Config) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Target == "" {
		bad("no target: give host:port")
	}
	kind, known := Scenarios[c.Scenario]
	if !known {
		bad("unknown scenario %q: one of %s", c.Scenario, strings.Join(Names(), ", "))
	}
	if kind.Paced && c.Rate != nil {
		bad("%s takes its times from the libraries it plays: it has no rate", c.Scenario)
	}
	if c.Loops < 1 || c.Clients < c.Loops {
		bad("%d clients on %d loops: at least one loop, and one client for each", c.Clients, c.Loops)
	}
	if c.Parts < 1 || c.Part < 0 || c.Part >= c.Parts {
		bad("part %d of %d processes: parts count from 0", c.Part, c.Parts)
	}
	if c.Duration <= 0 || c.Timeout <= 0 || c.Warmup < 0 || c.Window <= 0 {
		bad("duration %s, timeout %s, window %s, warmup %s: the last must not be negative, the others be positive", c.Duration, c.Timeout, c.Window, c.Warmup)
	}
	if v := c.APIVersionsVersion; v < 0 || v > kafka.MaxAPIVersions {
		bad("ApiVersions v%d: 0 to %d are known", v, kafka.MaxAPIVersions)
	}
	if v := c.MetadataVersion; v < 0 || v > kafka.MaxMetadata {
		bad("Metadata v%d: 0 to %d are known", v, kafka.MaxMetadata)
	}
	if most := MaxClients(); c.Clients > most {
		bad("%d clients need %d descriptors and this process may have %d: raise `ulimit -n` or use several processes", c.Clients, c.Clients+descriptorReserve, most+descriptorReserve)
	}
	if c.Pace <= 0 || c.Every <= 0 || c.Spread < 0 || c.Spread > c.Every || c.ReadRate < 1 {
		bad("pace %g, waves every %s, spread over %s, %d bytes/s read: all must be positive, and the spread within the waves' distance", c.Pace, c.Every, c.Spread, c.ReadRate)
	}
	for _, s := range c.Libraries {
		if _, ok := Libraries[s.Name]; !ok {
			bad("unknown library %q: one of %s", s.Name, strings.Join(LibraryNames(), ", "))
		}
	}
	for _, s := range c.Mix {
		if k, ok := Scenarios[s.Name]; !ok || k.Paced || s.Name == "mixed" {
			bad("mix: %q cannot be mixed: kept, storm, slowreader, hostile can", s.Name)
		}
	}
	for _, s := range c.Asks {
		if _, _, err := c.parseAsk(s.Name); err != nil {
			faults = append(faults, err)
		}
	}
	if len(c.Asks) > 0 && (c.Draw < 1 || c.Draw > 100) {
		bad("%d requests are drawn for each bootstrap: 1 to 100", c.Draw)
	}
	if len(c.Libraries) == 0 || len(c.Mix) == 0 {
		bad("no libraries, or no mix: at least one of each")
	}
	return errors.Join(faults...)
}
