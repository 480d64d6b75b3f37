package scenario

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/failure"
)

// old serves ApiVersions up to v3 and Metadata up to v8, and refuses newer ApiVersions as brokers have since KIP-511: in
// version 0, with the table. It counts refusals, and Metadata asked in a version that it does not serve.
func old(refused, wrong *atomic.Int32) *peer {
	return &peer{faults: faults{
		greet: func(a *kmsg.ApiVersionsResponse) {
			a.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 8}, {ApiKey: 18, MaxVersion: 3}}
			if a.Version > 3 {
				a.Version, a.ErrorCode, a.ApiKeys = 0, 35, a.ApiKeys[1:]
				refused.Add(1)
			}
		},
		answer: func(_ int, m *kmsg.MetadataResponse) {
			if m.Version > 8 {
				wrong.Add(1)
			}
		},
	}}
}

func TestATargetThatServesLessIsAskedInWhatItServes(t *testing.T) {
	for _, name := range Names() {
		if name == "hostile" { // does not greet
			continue
		}
		t.Run(name, func(t *testing.T) {
			var refused, wrong atomic.Int32
			cfg := short(old(&refused, &wrong).listen(t), name)
			cfg.APIVersionsVersion, cfg.MetadataVersion = 5, 13
			if name == "storm" {
				cfg.Asks = []Share{{"metadata-one@13", 1}, {"metadata-all", 1}} // of the two that are served
			}
			brief(&cfg)
			r := run(t, cfg)
			if r.Answered == 0 || r.TargetFailures() > 0 || wrong.Load() > 0 {
				t.Errorf("%d answered, failures %v %v, %d answers in a version that is not served", r.Answered, r.Failed, r.Details, wrong.Load())
			}
			if refused.Load() == 0 {
				t.Error("no refusal: nothing was tested")
			}
		})
	}
}

// TestARefusalThatLeadsNowhereIsTheTargetsFault: it refuses what its own table says it serves, or serves no Metadata.
func TestARefusalThatLeadsNowhereIsTheTargetsFault(t *testing.T) {
	for want, greet := range map[string]func(*kmsg.ApiVersionsResponse){
		"up to v5 is served": func(a *kmsg.ApiVersionsResponse) { a.Version, a.ErrorCode = 0, 35 },
		"no version of Metadata up to v12": func(a *kmsg.ApiVersionsResponse) {
			a.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MinVersion: 20, MaxVersion: 21}}
		},
	} {
		r := run(t, short((&peer{faults: faults{greet: greet}}).listen(t), "storm"))
		if r.Answered > 0 || r.Failed[failure.ErrorCode] == 0 || !strings.Contains(r.Details[failure.ErrorCode][0], want) {
			t.Errorf("%q: %d answered, failures %v %v", want, r.Answered, r.Failed, r.Details)
		}
	}
}
