// Package probe has the Kafka checks that decide whether kvip may use a broker. They run in order on one kept connection;
// a new check is one file, one line in Registry and one row in the conformance suite.
package probe

import "github.com/kvip/kvip/healthcheck"

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
	ReasonNotListed    healthcheck.Reason = "not_listed"    // the broker list lacks the broker that gave it
	ReasonWrongCluster healthcheck.Reason = "wrong_cluster" // another cluster's id
	ReasonWrongNode    healthcheck.Reason = "wrong_node"    // another node id than the registry's
)

// Reasons has every reason, in the order in which a probe can meet them.
var Reasons = []healthcheck.Reason{
	ReasonConnect, ReasonRefused, ReasonTimeout, ReasonClosed, ReasonBadAnswer, ReasonVersion, ReasonController,
	ReasonNoBrokers, ReasonNotListed, ReasonWrongCluster, ReasonWrongNode,
}
