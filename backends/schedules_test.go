package backends

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// Whole pools through seeded schedules of slowness, starting brokers, cut connections and changes of the registry, in fake
// time: no forward fails, never are more held out than may be, lookups always list all brokers, and in the end all serve.
func TestPoolsThroughSchedulesOfTrouble(t *testing.T) {
	const schedules = 24
	held := 0 // how often a member was seen to be held out
	for seed := range uint64(schedules) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { held += troubled(t, rand.New(rand.NewPCG(seed, 4))) })
		})
	}
	if held < 10*schedules {
		t.Errorf("members were held out %d times in all: the schedules try nothing", held)
	}
}

func troubled(t *testing.T, rng *rand.Rand) (everHeld int) {
	w := newWorld(t)
	c := w.cluster("A", six)
	names := []string{"ring", "round-robin", "least-inflight", "same-queue", "source-hash"}
	w.up(Config{Policy: names[rng.IntN(len(names))]}, six...)
	end := map[int]func(){}
	for range 12 {
		i := rng.IntN(len(six) - 1) // the last one stays well
		switch rng.IntN(5) {
		case 0:
			w.slow(six[i], time.Duration(50+rng.IntN(150))*time.Millisecond)
		case 1:
			w.slow(six[i], 0)
		case 2:
			if end[i] == nil {
				end[i] = emptyLists(c, int32(i))
			} else {
				end[i]()
				delete(end, i)
			}
		case 3:
			w.cut(six[i])
		case 4:
			listed := []int{six[5]}
			for j := range 5 {
				if j != i {
					listed = append(listed, six[j])
				}
			}
			w.registry.list(listed...)
		}
		for range 2 + rng.IntN(20) {
			for range 3 {
				if r := findAs(w, rng.Uint64()); r.Err != nil {
					t.Fatalf("a forward failed: %v", r.Err)
				}
			}
			held, serving, all := 0, 0, 0
			for _, m := range w.pool.Status().Members {
				switch State(m.State) {
				case Serving:
					serving++
				case Trial, Ejected:
					held++
				case Down:
				default:
					continue
				}
				all++
			}
			everHeld += held
			if held > 0 && 2*serving < all {
				t.Fatalf("of %d, %d serve and %d are held out", all, serving, held)
			}
			if got := w.brokers(); len(got) != len(six) {
				t.Fatalf("lookups list %v", got)
			}
			time.Sleep(time.Second)
		}
	}
	for _, end := range end {
		end()
	}
	for _, port := range six {
		w.slow(port, 0)
	}
	w.registry.list(six...)
	eventually(t, 7*time.Minute, "all serve", func() bool {
		states := w.states()
		for _, s := range states {
			if s != "serving" {
				return false
			}
		}
		return len(states) == len(six)
	})
	return everHeld
}
