package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// traits are what the conformance test has to know of a policy: one row for each entry of Policies.
var traits = map[string]struct {
	// byClient: the client alone decides, so that the order in which members are listed must not.
	byClient bool
}{
	"round-robin": {},
}

func TestEachPolicyHasARow(t *testing.T) {
	if got, want := slices.Sorted(maps.Keys(traits)), slices.Sorted(maps.Keys(Policies)); !slices.Equal(got, want) {
		t.Fatalf("traits has rows for %v, Policies has %v", got, want)
	}
}

func eachPolicy(t *testing.T, f func(t *testing.T, name string, build func([]Member) Picker)) {
	for name, build := range Policies {
		t.Run(name, func(t *testing.T) { f(t, name, build) })
	}
}

func membersOf(weights []int) []Member {
	var ms []Member
	for i, w := range weights {
		ms = append(ms, Member{Addr: fmt.Sprintf("b%d.example:9092", i), NodeID: int32(i), Weight: w})
	}
	return ms
}

// count picks for n clients and returns how often each member was taken.
func count(p Picker, members, n int) []int {
	got := make([]int, members)
	for i := range n {
		got[p.Pick(uint64(i)*0x9e3779b97f4a7c15)]++
	}
	return got
}

func TestShareFollowsWeight(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build func([]Member) Picker) {
		for _, weights := range [][]int{
			{1}, {1, 1, 1}, {5, 1, 1}, {20, 20, 10}, {1, 2, 3, 4, 5, 6, 7}, {100, 50, 1}, {65535, 32768, 16384}, {997, 991, 983, 977},
		} {
			const picks = 200_000
			total := 0
			for _, w := range weights {
				total += w
			}
			for i, got := range count(build(membersOf(weights)), len(weights), picks) {
				want := float64(picks) * float64(weights[i]) / float64(total)
				if math.Abs(float64(got)-want) > 0.05*want {
					t.Errorf("weights %v: member %d was picked %d times, want %.0f within 5%%", weights, i, got, want)
				}
			}
		}
	})
}

func TestWeightZeroIsPickedOnlyWhenNothingElseIs(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build func([]Member) Picker) {
		rapid.Check(t, func(t *rapid.T) {
			weights := rapid.SliceOfN(rapid.IntRange(-1, 3), 1, 20).Draw(t, "weights")
			p := build(membersOf(weights))
			for i, got := range count(p, len(weights), 500) {
				switch weighted := slices.Max(weights) > 0; {
				case weighted && weights[i] <= 0 && got > 0:
					t.Fatalf("member %d of weight %d was picked", i, weights[i])
				case !weighted && got == 0:
					t.Fatalf("all weights are 0, and member %d was never picked", i)
				}
			}
		})
	})
}

func TestNobodyToPick(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build func([]Member) Picker) {
		if got := build(nil).Pick(7); got != -1 {
			t.Errorf("picked %d of no members, want -1", got)
		}
	})
}

func TestPickAllocatesNothing(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build func([]Member) Picker) {
		p := build(membersOf([]int{3, 2, 1}))
		if n := testing.AllocsPerRun(1000, func() { p.Pick(42) }); n != 0 {
			t.Errorf("a pick allocates %v times", n)
		}
	})
}

func TestConcurrentPicksShareTheRound(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build func([]Member) Picker) {
		p := build(membersOf([]int{1, 1, 2}))
		var results [4][]int
		var wg sync.WaitGroup
		for i := range results {
			wg.Go(func() { results[i] = count(p, 3, 40_000) })
		}
		wg.Wait()
		sum := [3]int{}
		for _, r := range results {
			for i, n := range r {
				sum[i] += n
			}
		}
		for i, want := range []float64{40_000, 40_000, 80_000} {
			if math.Abs(float64(sum[i])-want) > 0.05*want {
				t.Errorf("member %d was picked %d times, want %.0f within 5%%", i, sum[i], want)
			}
		}
	})
}

func TestPlacementDoesNotDependOnOrder(t *testing.T) {
	eachPolicy(t, func(t *testing.T, name string, build func([]Member) Picker) {
		if !traits[name].byClient {
			t.Logf("%s does not look at the client: nothing to hold", name)
			return
		}
		ms := membersOf([]int{1, 2, 3, 1, 2})
		turned := slices.Clone(ms)
		slices.Reverse(turned)
		a, b := build(ms), build(turned)
		for client := range uint64(10_000) {
			if x, y := ms[a.Pick(client)].Addr, turned[b.Pick(client)].Addr; x != y {
				t.Fatalf("client %d gets %s or %s, depending on the order of members", client, x, y)
			}
		}
	})
}
