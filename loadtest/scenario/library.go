package scenario

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvip/kvip/loadtest/kafka"
)

// Library is what a bootstrap address sees of one client library, read from its source with default settings.
type Library struct {
	Software    kafka.Software
	APIVersions int16 // version of its first request; -1: it sends none
	Metadata    int16
	Topics      ask
	// Refresh is how often it asks for Metadata over the bootstrap connection again: evenly between the two; 0: never.
	Refresh [2]time.Duration
	// Leaves says that it closes the bootstrap connection once it knows the brokers.
	Leaves  bool
	Backoff Backoff
}

// ask is what a library asks for first.
type ask uint8

const (
	allTopics ask = iota
	brokersOnly
	someTopics // those of the run's settings
)

// Backoff is the time from a connection's loss, or a failed try, to the next try.
type Backoff struct {
	First, Most time.Duration
	Less, More  float64 // jitter: from 1-Less to 1+More of it
}

// after is the pause after so many failed tries in a row.
func (b Backoff) after(tries int, random *rand.Rand) time.Duration {
	d := b.First << min(tries, 20)
	if d <= 0 || d > b.Most {
		d = b.Most
	}
	return time.Duration(float64(d) * (1 - b.Less + random.Float64()*(b.Less+b.More)))
}

// Libraries by name. Where a version changed what a bootstrap address sees, the older one has a row of its own.
var Libraries = map[string]*Library{
	// The bootstrap node leaves the node set with the first Metadata; its socket stays open unused (NetworkClient). KIP-144.
	"java": {
		Software: kafka.Software{Name: "apache-kafka-java", Version: "4.3.1"}, APIVersions: 4, Metadata: 13, Topics: someTopics,
		Backoff: Backoff{50 * time.Millisecond, time.Second, 0.2, 0.2},
	},
	// Bootstrap brokers are decommissioned once learned ones exist. reconnect.backoff.ms, reconnect.backoff.max.ms.
	"librdkafka": {
		Software: kafka.Software{Name: "librdkafka", Version: "2.15.0"}, APIVersions: 3, Metadata: 13, Topics: brokersOnly, Leaves: true,
		Backoff: Backoff{100 * time.Millisecond, 10 * time.Second, 0.25, 0.5},
	},
	// Before 2.10 the bootstrap connection stays, and topic.metadata.refresh.interval.ms may use any connection.
	"librdkafka-2.8": {
		Software: kafka.Software{Name: "librdkafka", Version: "2.8.0"}, APIVersions: 3, Metadata: 12, Topics: someTopics,
		Refresh: [2]time.Duration{5 * time.Minute, 5 * time.Minute},
		Backoff: Backoff{100 * time.Millisecond, 10 * time.Second, 0.25, 0.5},
	},
	// connPool.discover: all topics from the bootstrap address, forever, up to MetadataTTL (6 s) apart.
	"kafka-go": {
		APIVersions: 0, Metadata: 8, Topics: allTopics, Refresh: [2]time.Duration{0, 6 * time.Second},
		Backoff: Backoff{100 * time.Millisecond, time.Second, 0, 0},
	},
	// Metadata.Full: all topics; seeds only while nothing else is known. Metadata.Retry.
	"sarama": {
		Software: kafka.Software{Name: "sarama", Version: "1.61.1"}, APIVersions: 3, Metadata: 7, Topics: allTopics,
		Backoff: Backoff{250 * time.Millisecond, 250 * time.Millisecond, 0, 0},
	},
	// Before 1.42 every refresh (Metadata.RefreshFrequency) goes to the seed first.
	"sarama-1.38": {
		Software: kafka.Software{Name: "sarama", Version: "1.38.1"}, APIVersions: 3, Metadata: 7, Topics: allTopics,
		Refresh: [2]time.Duration{10 * time.Minute, 10 * time.Minute},
		Backoff: Backoff{250 * time.Millisecond, 250 * time.Millisecond, 0, 0},
	},
	// The seed connection stays. retry.initialRetryTime, maxRetryTime, factor 0.2.
	"kafkajs": {
		APIVersions: 2, Metadata: 6, Topics: allTopics,
		Backoff: Backoff{300 * time.Millisecond, 30 * time.Second, 0.2, 0.2},
	},
	// net/manager.py _do_bootstrap closes it right after Metadata.
	"kafka-python": {
		Software: kafka.Software{Name: "kafka-python", Version: "3.0.12"}, APIVersions: 4, Metadata: 8, Topics: brokersOnly, Leaves: true,
		Backoff: Backoff{50 * time.Millisecond, 30 * time.Second, 0.2, 0.2},
	},
	// Seeds are asked in turn with the brokers: after as many refreshes (MetadataMaxAge) as there are brokers.
	"franz-go": {
		Software: kafka.Software{Name: "kgo", Version: "1.22.3"}, APIVersions: 4, Metadata: 13, Topics: someTopics,
		Refresh: [2]time.Duration{15 * time.Minute, 25 * time.Minute},
		Backoff: Backoff{250 * time.Millisecond, 2500 * time.Millisecond, 0.2, 0.2},
	},
}

// LibraryNames lists the libraries.
func LibraryNames() []string { return slices.Sorted(maps.Keys(Libraries)) }

// asks are the library's requests.
func (lib *Library) asks(cfg *Config) *asks {
	ask := kafka.Lookup{All: true}
	switch {
	case lib.Topics == brokersOnly:
		ask = kafka.Lookup{}
	case lib.Topics == someTopics:
		ask = cfg.Lookup
	}
	return newAsks(cfg.ClientID, lib.Software, lib.APIVersions, lib.Metadata, ask)
}

// refresh is the time to the next Metadata request; ok is false when there is none.
func (lib *Library) refresh(random *rand.Rand, pace float64) (d time.Duration, ok bool) {
	from, to := lib.Refresh[0], lib.Refresh[1]
	if to == 0 {
		return 0, false
	}
	return time.Duration((float64(from) + random.Float64()*float64(to-from)) / pace), true
}
