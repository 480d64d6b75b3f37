package check

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/failure"
)

// coordinator is the answer about a group: the broker that coordinates it, or an error.
func coordinator(t *testing.T, group string, node int32, code int16) *View {
	t.Helper()
	c := kmsg.NewFindCoordinatorResponseCoordinator()
	c.Key, c.NodeID, c.Host, c.Port, c.ErrorCode = group, node, "127.0.0.1", 9092, code
	m := kmsg.NewPtrFindCoordinatorResponse()
	m.Version, m.Coordinators = 4, append(m.Coordinators, c)
	v := New(Expect{Facts: true}).FindCoordinator(4, group, m.AppendTo(nil))
	if v.Fault != failure.None {
		t.Fatal(v.Fault, v.Detail)
	}
	return v
}

// TestNoCoordinatorYetIsBelievedOnlyWhileOneMoves: Kafka 4.3 looks a coordinator's partition up and then its broker, so
// that a FindCoordinator between two images of the metadata finds none. That lasts far less than from one asking to the
// next.
func TestNoCoordinatorYetIsBelievedOnlyWhileOneMoves(t *testing.T) {
	const ms = time.Millisecond
	truth := NewTruth(TruthConfig{})
	w := newWitness(truth, "")
	for at := time.Duration(0); at < 1000*ms; at += 100 * ms {
		node := int32(1)
		if at >= 500*ms {
			node = 2
		}
		w.heard(coordinator(t, "moves", node, 0).facts, at, at+10*ms)
		w.heard(coordinator(t, "stays", 1, 0).facts, at, at+10*ms)
	}
	for name, c := range map[string]struct {
		view       *View
		asked, got time.Duration
		untrue     bool
	}{
		"not available, while it moves": {coordinator(t, "moves", -1, 15), 450 * ms, 451 * ms, false},
		"loading, while it moves":       {coordinator(t, "moves", -1, 14), 380 * ms, 405 * ms, false},
		"before":                        {coordinator(t, "moves", -1, 15), 380 * ms, 390 * ms, true},
		"after":                         {coordinator(t, "moves", -1, 15), 520 * ms, 530 * ms, true},
		"of a group that stays":         {coordinator(t, "stays", -1, 15), 450 * ms, 451 * ms, true},
		"another broker":                {coordinator(t, "moves", 3, 0), 450 * ms, 451 * ms, true},
	} {
		_, why := truth.Judge(Told{c.view, c.asked, c.got})
		if untrue := strings.Contains(why, "no broker said so"); untrue != c.untrue || !untrue && why != "" {
			t.Errorf("%s: %q, want untrue %v", name, why, c.untrue)
		}
	}
}
