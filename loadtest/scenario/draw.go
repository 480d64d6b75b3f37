package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kvip/kvip/loadtest/kafka"
)

// Groups are the consumer groups whose coordinators clients ask for, by Config.Asks. Their names are equally long.
var Groups = func() (names []string) {
	for i := range 16 {
		names = append(names, fmt.Sprintf("kvip-loadtest-%02d", i))
	}
	return names
}()

// askKind is a name of Config.Asks.
type askKind struct {
	least, most int16
	version     func(*Config) int16 // when the name has none
	requests    func(cfg *Config, version int16) []*request
}

var askKinds = map[string]askKind{
	"metadata-all": {0, kafka.MaxMetadata, metadataVersion, func(cfg *Config, version int16) []*request {
		return []*request{lookup(cfg.ClientID, version, kafka.Lookup{All: true})}
	}},
	"metadata-one": {0, kafka.MaxMetadata, metadataVersion, func(cfg *Config, version int16) (all []*request) {
		for _, topic := range cfg.Lookup.Topics {
			all = append(all, lookup(cfg.ClientID, version, kafka.Lookup{Topics: []string{topic}}))
		}
		return all
	}},
	"metadata-brokers": {1, kafka.MaxMetadata, metadataVersion, func(cfg *Config, version int16) []*request {
		return []*request{lookup(cfg.ClientID, version, kafka.Lookup{})}
	}},
	"describe-cluster": {0, kafka.MaxDescribeCluster, func(*Config) int16 { return 1 }, func(cfg *Config, version int16) []*request {
		return []*request{{key: kafka.KeyDescribeCluster, version: version, frame: kafka.DescribeClusterRequest(version, cfg.ClientID)}}
	}},
	"find-coordinator": {0, kafka.MaxFindCoordinator, func(*Config) int16 { return 4 }, func(cfg *Config, version int16) (all []*request) {
		for _, group := range Groups {
			all = append(all, &request{key: kafka.KeyFindCoordinator, version: version, group: group, frame: kafka.FindCoordinatorRequest(version, cfg.ClientID, group)})
		}
		return all
	}},
}

func metadataVersion(cfg *Config) int16 { return cfg.MetadataVersion }

// AskNames lists what Config.Asks may name.
func AskNames() []string { return slices.Sorted(maps.Keys(askKinds)) }

// parseAsk reads "find-coordinator" or, with a version, "find-coordinator@0".
func (c *Config) parseAsk(name string) (askKind, int16, error) {
	base, digits, given := strings.Cut(name, "@")
	kind, known := askKinds[base]
	if !known {
		return kind, 0, fmt.Errorf("asks: unknown %q: one of %s, and @VERSION behind it if need be", name, strings.Join(AskNames(), ", "))
	}
	version := kind.version(c)
	if given {
		n, err := strconv.ParseInt(digits, 10, 16)
		if err != nil {
			return kind, 0, fmt.Errorf("asks: %q: a version is a number, as in find-coordinator@4", name)
		}
		version = int16(n)
	}
	switch {
	case version < kind.least || version > kind.most:
		return kind, 0, fmt.Errorf("asks: %s in version %d: %d to %d are known", base, version, kind.least, kind.most)
	case len(kind.requests(c, version)) == 0:
		return kind, 0, fmt.Errorf("asks: %s needs a topic to ask for", base)
	}
	return kind, version, nil
}

// draw gives requests in turn: of each kind as many as its weight says, and within a kind one after the other.
type draw struct {
	deal    deal
	kinds   map[string]*turn
	lowered map[lowered]*request // for targets that serve less
}

type lowered struct {
	*request
	version int16
}

type turn struct {
	requests []*request
	next     int
}

// newDraw is nil when bootstraps ask for Metadata alone. The configuration is valid.
func newDraw(cfg *Config) *draw {
	if len(cfg.Asks) == 0 {
		return nil
	}
	d := &draw{deal: newDeal(cfg.Asks), kinds: map[string]*turn{}, lowered: map[lowered]*request{}}
	for _, s := range cfg.Asks {
		if kind, version, err := cfg.parseAsk(s.Name); err == nil {
			d.kinds[s.Name] = &turn{requests: kind.requests(cfg, version)}
			for i, r := range d.kinds[s.Name].requests {
				r.lower = func(version int16) *request { return kind.requests(cfg, version)[i] }
			}
		}
	}
	return d
}

func (d *draw) pick() *request {
	t := d.kinds[d.deal.next()]
	t.next = (t.next + 1) % len(t.requests)
	return t.requests[t.next]
}

// served is the request in the newest version, up to its own, that a target serves. A client that did not ask for the
// table, nil, sends what it has.
func (d *draw) served(r *request, table *kafka.APIVersions) (*request, error) {
	if table == nil {
		return r, nil
	}
	version, ok := table.Max(r.key, r.version)
	if !ok {
		return nil, fmt.Errorf("no version of api key %d up to v%d is served", r.key, r.version)
	}
	if version == r.version {
		return r, nil
	}
	key := lowered{r, version}
	if d.lowered[key] == nil {
		d.lowered[key] = r.lower(version)
	}
	return d.lowered[key], nil
}

// all are all requests that may be drawn.
func (d *draw) all() (requests []*request) {
	for _, t := range d.kinds {
		requests = append(requests, t.requests...)
	}
	return requests
}
