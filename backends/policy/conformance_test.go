package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// traits are what the conformance test has to know of a policy: one row for each entry of Policies.
var traits = map[string]struct {
	// byClient: the client alone decides, so that the order in which members are listed must not.
	byClient bool
	// keeps: few clients get another member when one comes or goes.
	keeps bool
	// byLoad: a loaded member gets less than its weight says.
	byLoad bool
}{
	"ring":           {byClient: true, keeps: true},
	"source-hash":    {byClient: true},
	"round-robin":    {},
	"least-inflight": {byLoad: true},
	"same-queue":     {byLoad: true},
}

func TestEachPolicyHasARow(t *testing.T) {
	if got, want := slices.Sorted(maps.Keys(traits)), slices.Sorted(maps.Keys(Policies)); !slices.Equal(got, want) {
		t.Fatalf("traits has rows for %v, Policies has %v", got, want)
	}
	for name, p := range Policies {
		if p.Doc == "" || (p.Key != nil) != traits[name].byClient {
			t.Errorf("%s: Doc %q, looks at the client %v", name, p.Doc, p.Key != nil)
		}
	}
}

// builder builds by one policy, one way.
type builder func([]Member) Picker

// eachPolicy runs f for each policy as it is, and within a zone that all members are in: what holds for a policy holds
// for it under a zone preference.
func eachPolicy(t *testing.T, f func(t *testing.T, name string, build builder)) {
	for name := range Policies {
		t.Run(name, func(t *testing.T) {
			f(t, name, func(ms []Member) Picker { return Build(name, ms, Options{}, nil) })
		})
		t.Run(name+" with a zone", func(t *testing.T) {
			f(t, name, func(ms []Member) Picker { return Build(name, ms, Options{Zone: "none", Full: 16}, nil) })
		})
	}
}

func membersOf(weights []int) []Member {
	var ms []Member
	for i, w := range weights {
		ms = append(ms, Member{Addr: fmt.Sprintf("b%d.example:9092", i), NodeID: int32(i), Weight: w})
	}
	return ms
}

// clientKey is the key of the i-th of many clients.
func clientKey(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 }

// count picks for n clients and returns how often each member was taken.
func count(p Picker, members, n int) []int {
	got := make([]int, members)
	for i := range n {
		got[p.Pick(clientKey(i))]++
	}
	return got
}

// within5 says that got is what is wanted but for 5%.
func within5(t *testing.T, what string, got int, want float64) {
	t.Helper()
	if math.Abs(float64(got)-want) > 0.05*want {
		t.Errorf("%s was picked %d times, want %.0f within 5%%", what, got, want)
	}
}

func TestShareFollowsWeight(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build builder) {
		for _, weights := range [][]int{
			{1}, {1, 1, 1}, {5, 1, 1}, {20, 20, 10}, {1, 2, 3, 4, 5, 6, 7}, {20, 10, 1}, {65535, 32768, 16384}, {997, 991, 983, 977},
			slices.Repeat([]int{1}, 30),
		} {
			const picks = 300_000
			total := 0
			for _, w := range weights {
				total += w
			}
			for i, got := range count(build(membersOf(weights)), len(weights), picks) {
				within5(t, fmt.Sprintf("of weights %v, member %d", weights, i), got, picks*float64(weights[i])/float64(total))
			}
		}
	})
}

func TestWeightZeroIsPickedOnlyWhenNothingElseIs(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build builder) {
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
	eachPolicy(t, func(t *testing.T, _ string, build builder) {
		p := build(nil)
		if got := p.Pick(7); got != -1 {
			t.Errorf("picked %d of no members, want -1", got)
		}
		if got, _ := p.Explain(7); got != -1 {
			t.Errorf("explained %d of no members, want -1", got)
		}
	})
}

func TestPickAllocatesNothing(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build builder) {
		ms := loaded([]int{3, 2, 1}, 5, 0, 1)
		ms[1].Part = new(atomic.Int32)
		p := build(ms)
		if n := testing.AllocsPerRun(1000, func() { p.Pick(42) }); n != 0 {
			t.Errorf("a pick allocates %v times", n)
		}
	})
}

func TestConcurrentPicksShareTheRound(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build builder) {
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
			within5(t, fmt.Sprint("member ", i), sum[i], want)
		}
	})
}

func TestPlacementDoesNotDependOnOrder(t *testing.T) {
	eachPolicy(t, func(t *testing.T, name string, build builder) {
		if !traits[name].byClient {
			return // the client does not decide
		}
		ms := membersOf([]int{1, 2, 3, 1, 2})
		turned := slices.Clone(ms)
		slices.Reverse(turned)
		a, b := build(ms), build(turned)
		for i := range 10_000 {
			if x, y := ms[a.Pick(clientKey(i))].Addr, turned[b.Pick(clientKey(i))].Addr; x != y {
				t.Fatalf("client %d gets %s or %s, depending on the order of members", i, x, y)
			}
		}
	})
}

// A member that comes takes from every other, and with it no more than its share and 5% of all clients move; the same
// when it goes.
func TestFewClientsMove(t *testing.T) {
	eachPolicy(t, func(t *testing.T, name string, build builder) {
		if !traits[name].keeps {
			return
		}
		for _, c := range []struct{ n, weight int }{{2, 1}, {3, 1}, {4, 1}, {5, 1}, {10, 1}, {30, 1}, {100, 1}, {3, 1000}, {9, 100}, {35, 24}, {100, 100}} {
			n := c.n
			all := membersOf(slices.Repeat([]int{c.weight}, n))
			for _, gone := range []int{0, n / 2, n - 1} {
				less := slices.Delete(slices.Clone(all), gone, gone+1)
				const clients = 100_000
				moved, gave := 0, map[string]int{}
				with, without := build(all), build(less)
				for i := range clients {
					a, b := all[with.Pick(clientKey(i))].Addr, less[without.Pick(clientKey(i))].Addr
					if a == b {
						continue
					}
					moved++
					if a == all[gone].Addr {
						gave[b]++
					}
				}
				if share := float64(moved) / clients; share > 1/float64(n)+0.05 {
					t.Errorf("of %d members number %d comes or goes, and %.1f%% of clients move", n, gone, 100*share)
				}
				// 160 points cannot meet all of a hundred members.
				if n <= 30 && len(gave) != n-1 {
					t.Errorf("of %d members number %d comes, and takes from %d of the others", n, gone, len(gave))
				}
			}
		}
	})
}

// loaded are members with so many requests in flight.
func loaded(weights []int, loads ...int64) []Member {
	ms := membersOf(weights)
	for i := range ms {
		ms[i].Load = new(atomic.Int64)
		ms[i].Load.Store(loads[i])
	}
	return ms
}

func TestLoadedMembersGetLess(t *testing.T) {
	eachPolicy(t, func(t *testing.T, name string, build builder) {
		got := count(build(loaded([]int{1, 1, 2}, 9, 1, 2)), 3, 100_000)
		if less := got[0] < 15_000; less != traits[name].byLoad {
			t.Errorf("picks %v, of whom the first has by far the longest queue", got)
		}
	})
}

// A load is long or short for the weight that carries it.
func TestLoadsAreMeasuredByWeight(t *testing.T) {
	eachPolicy(t, func(t *testing.T, name string, build builder) {
		if !traits[name].byLoad {
			return
		}
		if got := count(build(loaded([]int{1, 10}, 2, 9)), 2, 100_000); got[1] < 95_000 {
			t.Errorf("picks %v: the second, of ten times the weight, has less in flight for it", got)
		}
		weights, loads := []int{10}, []int64{9} // one that a pick does not look at all of
		for range 19 {
			weights, loads = append(weights, 1), append(loads, 2)
		}
		if got := count(build(loaded(weights, loads...)), 20, 100_000); got[0] < 50_000 {
			t.Errorf("picks %v: the first has least in flight for its weight, and a third of all weight", got)
		}
	})
}

// A member under trial, or that starts, gets a part of its share, and the others what it does not get, by weight.
func TestAPartOfAShare(t *testing.T) {
	eachPolicy(t, func(t *testing.T, name string, build builder) {
		for _, part := range []int32{0, 100, 500, 1000} {
			ms := membersOf([]int{1, 1, 2, 1})
			ms[2].Part = new(atomic.Int32)
			p := build(ms)
			ms[2].Part.Store(part)
			const picks = 200_000
			for i, got := range count(p, 4, picks) {
				want := picks * 0.4 * float64(part) / 1000
				if i != 2 {
					want = (picks - want) / 3
				}
				within5(t, fmt.Sprintf("with a part of %d, member %d", part, i), got, want)
			}
		}
	})
}

// Nobody is held back when there is nobody else.
func TestAllHaveAPart(t *testing.T) {
	eachPolicy(t, func(t *testing.T, _ string, build builder) {
		ms := membersOf([]int{1, 1})
		ms[0].Part, ms[1].Part = new(atomic.Int32), new(atomic.Int32)
		for i, got := range count(build(ms), 2, 100_000) {
			within5(t, fmt.Sprint("member ", i), got, 50_000)
		}
	})
}

func TestAZoneComesFirstAndSpillsOver(t *testing.T) {
	for name := range Policies {
		t.Run(name, func(t *testing.T) {
			ms := loaded([]int{1, 1, 1, 1}, 0, 0, 0, 0)
			for i := range ms {
				ms[i].Rack = []string{"a", "b"}[i%2]
			}
			p := Build(name, ms, Options{Zone: "a", Full: 4}, nil)
			got := count(p, 4, 100_000)
			if got[1]+got[3] > 0 {
				t.Errorf("picks %v while zone a carries the load", got)
			}
			within5(t, "one of the zone", got[0], 50_000)
			ms[0].Load.Store(4)
			if got = count(p, 4, 100_000); got[0] > 0 || !traits[name].byClient && got[2] < 70_000 {
				t.Errorf("picks %v while one of two of zone a is full", got)
			}
			ms[2].Load.Store(4)
			got = count(p, 4, 100_000)
			if got[0]+got[2] > 0 {
				t.Errorf("picks %v while zone a is full", got)
			}
			if _, why := p.Explain(7); why != "" && got[1] == 0 {
				t.Errorf("nothing spills over: %s", why)
			}
		})
	}
}

// Who is full is told by its weight.
func TestALightMemberOfAZoneIsFullSooner(t *testing.T) {
	for name := range Policies {
		t.Run(name, func(t *testing.T) {
			ms := loaded([]int{1, 4, 1}, 4, 15, 0)
			ms[0].Rack, ms[1].Rack, ms[2].Rack = "a", "a", "b"
			got := count(Build(name, ms, Options{Zone: "a", Full: 16}, nil), 3, 20_000)
			if got[0] > 0 || got[1] == 0 {
				t.Errorf("picks %v: the first has its 4 in flight, the second not its 16", got)
			}
		})
	}
}

// A zone whose members all have a part of their share gives away the rest of it, as a pool does: one that is on trial and
// alone in its rack would get everything.
func TestAZoneWithoutAWholeMember(t *testing.T) {
	for name := range Policies {
		t.Run(name, func(t *testing.T) {
			ms := membersOf([]int{1, 1, 1})
			ms[0].Rack, ms[0].Part = "a", new(atomic.Int32)
			ms[0].Part.Store(100)
			p := Build(name, ms, Options{Zone: "a"}, nil)
			got := count(p, 3, 200_000)
			within5(t, "the one on trial", got[0], 20_000)
			within5(t, "each of the others", got[1], 90_000)
			explained := map[int]string{}
			for i := range 1000 {
				m, why := p.Explain(clientKey(i))
				explained[m] = why
			}
			for i, want := range map[int]string{0: `rack "a" come first`, 1: `brokers of rack "a" have only a part of their share`} {
				if !strings.Contains(explained[i], want) {
					t.Errorf("member %d is explained by %q, want %q", i, explained[i], want)
				}
			}
			if got := count(Build(name, ms[:1], Options{Zone: "a"}, nil), 1, 100); got[0] != 100 {
				t.Errorf("nobody else is there, and %d of 100 are picked", got[0])
			}
		})
	}
}

// What is explained is what is picked.
func TestExplanations(t *testing.T) {
	eachPolicy(t, func(t *testing.T, name string, build builder) {
		p := build(membersOf([]int{1, 2, 3}))
		for i := range 1000 {
			m, why := p.Explain(clientKey(i))
			if why == "" || m < 0 {
				t.Fatalf("client %d: member %d, %q", i, m, why)
			}
			if traits[name].byClient && m != p.Pick(clientKey(i)) {
				t.Fatalf("client %d gets another member than was explained", i)
			}
		}
	})
}
