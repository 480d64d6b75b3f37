package backends

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/protocol/forward"
)

// Brokers that answer 20, 20 and 10 lookups a second under `lookup: forward`, and clients that always have one waiting. What
// the pool carries is bounded by its slowest broker, three times over, when each gets as many; policies that know or find
// out what each can do carry the sum.
func TestUnequalBrokersCarryTheirSum(t *testing.T) {
	const clients, warmUp, measured = 40, 20 * time.Second, 100 * time.Second
	known := []int{20, 20, 10}
	for _, c := range []struct {
		name, policy string
		weights      []int
		// at least and at most so many a second.
		least, most float64
	}{
		{"plain round-robin", "round-robin", []int{1, 1, 1}, 29, 31},
		{"weighted round-robin", "round-robin", known, 47.5, 50},
		{"same-queue, weights unknown", "same-queue", []int{1, 1, 1}, 47.5, 50},
		{"same-queue", "same-queue", known, 47.5, 50},
		{"least-inflight, weights unknown", "least-inflight", []int{1, 1, 1}, 47.5, 50},
		{"weighted least-inflight", "least-inflight", known, 47.5, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSwitchboard(t, 1, &fakeBroker{name: "b0", delay: 50 * time.Millisecond},
					&fakeBroker{name: "b1", delay: 50 * time.Millisecond}, &fakeBroker{name: "b2", delay: 100 * time.Millisecond})
				var members []policy.Member
				for i, target := range s.v.targets {
					members = append(members, policy.Member{Addr: target.addr, Weight: c.weights[i], Load: s.f.up.Load(target.addr)})
				}
				s.v.picker = policy.Build(c.policy, members, policy.Options{}, nil)
				began, done := time.Now(), 0
				results := make(chan forward.Result)
				for i := range uint32(clients) {
					s.send(i, write, lasting(time.Hour), answering(results))
				}
				for time.Since(began) < warmUp+measured {
					if r := <-results; r.Err != nil {
						t.Fatal(r.Err)
					}
					if time.Since(began) >= warmUp {
						done++
					}
					s.send(7, write, lasting(time.Hour), answering(results))
				}
				rate := float64(done) / measured.Seconds()
				t.Logf("%s carries %.1f of 50 a second", c.name, rate)
				if rate < c.least || rate > c.most+0.5 {
					t.Errorf("it carries %.1f a second, want %.1f to %.1f", rate, c.least, c.most)
				}
				for range clients {
					<-results
				}
			})
		})
	}
}

func lasting(d time.Duration) option { return func(r *forward.Request) { r.Timeout = d } }

func answering(results chan<- forward.Result) option {
	return func(r *forward.Request) { r.Done = func(res forward.Result) { results <- res } }
}
