//go:build e2e

package loadtest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvip/kvip/loadtest/lab"
	"github.com/kvip/kvip/loadtest/scenario"
)

// TestARealBrokerFailsNoScenario: what the load test calls right is what a broker does, hostile bytes included.
func TestARealBrokerFailsNoScenario(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	k, err := lab.StartKafka(ctx, lab.KafkaConfig{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := k.CreateTopic(ctx, "orders", 6, 1); err != nil {
		t.Fatal(err)
	}
	for name, kind := range scenario.Scenarios {
		args := []string{"--target", k.Node(0).Addr(), "--scenario", name, "--duration", "3s", "--dial-brokers", "--pid", strconv.Itoa(k.Node(0).Pid())}
		if kind.Paced {
			args = append(args, "--clients", "90", "--pace", "100", "--every", "1s", "--spread", "200ms", "--library", strings.Join(scenario.LibraryNames(), ","))
		} else {
			args = append(args, "--rate", "200")
		}
		r, out, err := run(t, args...)
		if r == nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s := r.Sides[0]; s.Done == 0 || s.Failed > 0 || s.CPU == nil || s.CPU.Seconds <= 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
