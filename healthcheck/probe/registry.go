// Package probe has the Kafka checks that decide whether kvip may use a broker. They run in order on one kept connection;
// a new check is one file, one line in Registry and one row in the conformance suite.
package probe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvip/kvip/healthcheck"
)

// Why a probe fails: the whole set, fit for a metric label.
const (
	ReasonConnect      healthcheck.Reason = "connect"       // no route, no such host, any other fault of connecting
	ReasonRefused      healthcheck.Reason = "refused"       // the port is closed
	ReasonTimeout      healthcheck.Reason = "timeout"       // no answer in time
	ReasonClosed       healthcheck.Reason = "closed"        // the broker closed the connection instead of answering
	ReasonBadAnswer    healthcheck.Reason = "bad_answer"    // bytes that are no answer to the request
	ReasonVersion      healthcheck.Reason = "version"       // no version of a needed request is known to both
	ReasonController   healthcheck.Reason = "controller"    // a controller's listener, not a broker's
	ReasonNoBrokers    healthcheck.Reason = "no_brokers"    // an empty broker list: the broker is starting
	ReasonWrongCluster healthcheck.Reason = "wrong_cluster" // another cluster's id
	ReasonFenced       healthcheck.Reason = "fenced"        // the cluster has fenced the broker
	ReasonNotListed    healthcheck.Reason = "not_listed"    // the broker list lacks the broker that gave it
	ReasonWrongNode    healthcheck.Reason = "wrong_node"    // another node id than the registry's
)

// Reasons has every reason, in the order in which a probe can meet them.
var Reasons = []healthcheck.Reason{
	ReasonConnect, ReasonRefused, ReasonTimeout, ReasonClosed, ReasonBadAnswer, ReasonVersion, ReasonController,
	ReasonNoBrokers, ReasonWrongCluster, ReasonFenced, ReasonNotListed, ReasonWrongNode,
}

// Check is one step of a probe.
type Check struct {
	// Rank is its place: checks run by ascending rank, and the first that fails ends the probe.
	Rank int
	// Finds says that checks of a higher rank look at what it finds: it runs whenever one of those is wanted.
	Finds bool
	// Doc is one line for the reference and for `kvip probe`.
	Doc string
	// Run does it. Detail says what was seen, whether it passed or not.
	Run func(ctx context.Context, v *visit) (reason healthcheck.Reason, detail string)
}

// Registry has every check by the name that steps and `kvip probe --check` show.
var Registry = map[string]Check{
	"connect":      {Rank: 10, Finds: true, Run: connect, Doc: "a TCP connection, kept between probes"},
	"api_versions": {Rank: 20, Finds: true, Run: apiVersions, Doc: "ApiVersions is answered, at the highest version that both know"},
	"listener":     {Rank: 30, Run: brokerListener, Doc: "a broker's listener, not a controller's"},
	"metadata":     {Rank: 40, Finds: true, Run: metadata, Doc: "Metadata without topics is answered and lists brokers"},
	"cluster_id":   {Rank: 50, Run: clusterID, Doc: "the cluster is the pool's"},
	"unfenced":     {Rank: 55, Run: unfenced, Doc: "the cluster has not fenced the broker, where it tells (KIP-1073)"},
	"self_listed":  {Rank: 60, Finds: true, Run: selfListed, Doc: "the broker list has the broker that gave it"},
	"node_id":      {Rank: 70, Run: nodeID, Doc: "the node id is the registry's"},
}

// namedCheck is a check with its name.
type namedCheck struct {
	name string
	Check
}

// plan returns the wanted checks (all for none) in order, with those before them whose findings they look at.
func plan(wanted []string) ([]namedCheck, error) {
	top, want := 0, map[string]bool{}
	for _, name := range wanted {
		c, ok := Registry[name]
		if !ok {
			return nil, fmt.Errorf("probe: there is no check %q; choose from %s", name, strings.Join(Names(), ", "))
		}
		top, want[name] = max(top, c.Rank), true
	}
	var out []namedCheck
	for _, name := range Names() {
		if c := Registry[name]; len(wanted) == 0 || want[name] || c.Finds && c.Rank < top {
			out = append(out, namedCheck{name, c})
		}
	}
	return out, nil
}

// Names returns all checks in the order in which they run.
func Names() []string {
	return slices.SortedFunc(maps.Keys(Registry), func(a, b string) int {
		return cmp.Or(cmp.Compare(Registry[a].Rank, Registry[b].Rank), strings.Compare(a, b))
	})
}
