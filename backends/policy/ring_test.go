package policy

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The golden vectors are md5sum's: printf 'b0.example:9092-v0' | md5sum.
func TestRingPoints(t *testing.T) {
	for _, c := range []struct {
		addr string
		v    int
		want uint64
	}{
		{"b0.example:9092", 0, 0xad7d5645bad93ec0},
		{"b0.example:9092", 159, 0x79aeac693f5a93ac},
		{"10.0.0.1:9092", 7, 0xfdf8db1b4e53fd78},
	} {
		if got := appendPoints(nil, c.addr, 0, 0, 160)[c.v].place; got != c.want {
			t.Errorf("point %d of %s is at %#x, want %#x", c.v, c.addr, got, c.want)
		}
	}
	if n := newRing(membersOf([]int{1, 2}), nil).(*ring).base.len(); n != 3*160 {
		t.Errorf("weights 1 and 2 have %d points, want 160 a unit", n)
	}
}

// A ring that follows changes one by one is the same as one that is made anew.
func TestRingFollowsChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var was Picker
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			ms := membersOf(rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 2, 3, heaviest, 30, 100}), 0, 12).Draw(t, "weights"))
			ms = rapid.Permutation(ms).Draw(t, "order")
			ms = ms[:rapid.IntRange(0, len(ms)).Draw(t, "members")]
			got, want := newRing(ms, was).(*ring), newRing(ms, nil).(*ring)
			if !slices.Equal(got.base.place, want.base.place) {
				t.Fatalf("the points of %v depend on what was before", ms)
			}
			for i := range 2000 {
				if a, b := got.Pick(clientKey(i)), want.Pick(clientKey(i)); a != b {
					t.Fatalf("client %d gets %d or %d of %v, depending on what was before", i, a, b, ms)
				}
			}
			if !slices.IsSorted(got.base.place) {
				t.Fatalf("the points are not in order")
			}
			was = got
		}
	})
}

// A weight beyond those that have points of their own changes shares as well, though no point moves.
func TestRingFollowsALargeWeight(t *testing.T) {
	was := newRing(membersOf([]int{30, 30}), nil)
	p := newRing(membersOf([]int{30, 90}), was)
	within5(t, "a member whose weight is three times the other's", count(p, 2, 100_000)[1], 75_000)
}

// The search through the index finds what a search through all points does.
func TestRingSearch(t *testing.T) {
	r := newRing(membersOf([]int{1, 2, 3}), nil).(*ring)
	check := func(place uint64) {
		i, _ := slices.BinarySearch(r.base.place, place)
		if got := r.find(place); got != i%r.base.len() {
			t.Errorf("the point after %#x is number %d, want %d", place, got, i)
		}
	}
	for i := range 10_000 {
		check(clientKey(i))
	}
	for _, p := range r.base.place {
		check(p - 1)
		check(p)
		check(p + 1)
	}
	check(0)
	check(1<<64 - 1)
}

func TestRingBoundsItsPoints(t *testing.T) {
	for _, weights := range [][]int{{65535, 32768, 1}, slices.Repeat([]int{100}, 500)} {
		if n := newRing(membersOf(weights), nil).(*ring).base.len(); n > maxPoints {
			t.Errorf("%d points of %d members", n, len(weights))
		}
	}
}

// Whoever is heavier than all others takes its share, and leaves the clients of the others where they are.
func TestAHeavyNewcomerMovesItsShareOnly(t *testing.T) {
	for _, weights := range [][]int{{24, 24, 24, 24, 24, 25}, {10, 10, 10, 40}, {20, 20, 50}, {1, 1, 1, 1000}, {300, 100, 100, 65535}} {
		all := membersOf(weights)
		last := len(all) - 1
		with, without := newRing(all, nil), newRing(all[:last], nil)
		const clients = 50_000
		elsewhere := 0
		for i := range clients {
			if a := with.Pick(clientKey(i)); a != last && a != without.Pick(clientKey(i)) {
				elsewhere++
			}
		}
		if share := float64(elsewhere) / clients; share > 0.05 {
			t.Errorf("of weights %v the last comes, and %.1f%% of clients move between the others", weights, 100*share)
		}
	}
}

// What each member has of the circle follows its weight, in large pools too.
func TestRingSharesOfLargePools(t *testing.T) {
	for _, n := range []int{30, 100, 150, 184, 200} {
		for _, heaviest := range []int{1, 3, 24, 100} {
			weights := make([]int, n)
			total := 0
			for i := range weights {
				weights[i] = 1 + i*7%heaviest
				total += weights[i]
			}
			r := newRing(membersOf(weights), nil).(*ring)
			share := make([]float64, n)
			before := r.base.place[r.base.len()-1]
			for k, place := range r.base.place {
				arc, owner := float64(place-before), r.base.owner[k]
				before = place
				given := arc * float64(r.even.cut[owner]) / (1 << 64)
				share[r.slots[owner]] += (arc - given) / (1 << 64)
				share[r.slots[r.even.taker[k]]] += given / (1 << 64)
			}
			for i, w := range weights {
				if fair := float64(w) / float64(total); math.Abs(share[i]-fair) > 0.05*fair {
					t.Errorf("of %d with weights up to %d, one of weight %d has %.3f times its share", n, heaviest, w, share[i]/fair)
				}
			}
		}
	}
}

// 2,000 brokers of weight 1.
func BenchmarkRingPick(b *testing.B) {
	p := newRing(membersOf(slices.Repeat([]int{1}, 2000)), nil)
	i := 0
	for b.Loop() {
		i++
		p.Pick(clientKey(i))
	}
}

// One of 2,000 brokers goes, and comes back.
func BenchmarkRingChange(b *testing.B) {
	ms := membersOf(slices.Repeat([]int{1}, 2000))
	p := newRing(ms, nil)
	less := slices.Delete(slices.Clone(ms), 700, 701)
	least := time.Hour
	b.ReportAllocs()
	for b.Loop() {
		for _, to := range [][]Member{less, ms} {
			begun := time.Now()
			p = newRing(to, p)
			least = min(least, time.Since(begun))
		}
	}
	b.ReportMetric(float64(least.Microseconds()), "least-us/change")
}
