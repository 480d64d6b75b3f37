package cli

import (
	"strings"
	"testing"

	"github.com/kvip/kvip/healthcheck"
	"github.com/kvip/kvip/healthcheck/probe"
)

// What takes no connection is another trouble than what takes one and is silent.
func TestTheHintOfATimeoutIsByItsStep(t *testing.T) {
	for step, want := range map[string]string{"connect": "nothing answers at that address", "api_versions": "it accepts and does not answer"} {
		r := probe.Result{
			Verdict: healthcheck.Verdict{Reason: probe.ReasonTimeout},
			Steps:   []probe.Step{{Name: step, Reason: probe.ReasonTimeout}},
		}
		if got := hint(r); !strings.HasPrefix(got, want) {
			t.Errorf("a timeout at %s: %q", step, got)
		}
	}
}
