package loadtest

import (
	"strings"
	"testing"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/lab"
)

// TestEveryFaultOfAPeerIsFoundByItsName drives what can meet a fault against a peer that has it: nothing else may be
// reported, and nothing at all of a healthy one.
func TestEveryFaultOfAPeerIsFoundByItsName(t *testing.T) {
	only := map[string]string{
		"refuse": "storm", "reset-accept": "storm", "mute": "storm", // nobody gets ready there, as kept clients must be
		"stale-address": "storm", "wrong-cluster": "kept", "unasked": "kept",
	}
	for name, fault := range lab.PeerFaults() {
		for _, scenario := range []string{"kept", "storm"} {
			if o := only[name]; o != "" && o != scenario {
				continue
			}
			t.Run(name+" "+scenario, func(t *testing.T) {
				t.Parallel()
				peer, err := lab.StartFaultyPeer(name)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := peer.Close(); err != nil {
						t.Error(err)
					}
				})
				args := []string{"--target", peer.Addr(), "--scenario", scenario, "--rate", "100", "--duration", "300ms", "--warmup", "0s", "--topic", "orders", "--dial-brokers"}
				if fault.Class == failure.Untrue {
					healthy, err := lab.StartFaultyPeer(lab.Healthy)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = healthy.Close() })
					args = append(args, "--truth", healthy.Addr())
				}
				if fault.Class == failure.Timeout {
					args = append(args, "--timeout", "150ms")
				}
				if fault.Class == failure.WrongCluster {
					args = append(args, "--clients", "1") // who asks twice over a connection
				}
				r, out, err := run(t, args...)
				if r == nil {
					t.Fatal(err)
				}
				s, found := r.Sides[0], map[string]uint64{}
				for _, f := range s.Failures {
					found[f.Class] = f.Count + f.Idle
				}
				want := fault.Class.String()
				if name == lab.Healthy {
					if len(found) > 0 || s.Done == 0 || s.Done != s.Intended {
						t.Errorf("a healthy peer: %v, %+v", found, s.Counts)
					}
					return
				}
				if found[want] == 0 || len(found) > 1 && !(name == "unasked" && found["wrong_id"] > 0) {
					t.Errorf("found %v, want only %s\n%s", found, want, out)
				}
				if s.Failed > 0 && (err == nil || !strings.Contains(err.Error(), "failed")) {
					t.Errorf("the command's error: %v", err)
				}
			})
		}
	}
}
