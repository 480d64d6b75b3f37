package policy

import (
	"slices"
	"testing"
)

// The turns of a heavy member are spread over the round instead of following one another (nginx's smooth algorithm).
func TestRoundRobinIsSmooth(t *testing.T) {
	for _, c := range []struct{ weights, want []int32 }{
		{[]int32{1, 1, 1}, []int32{0, 1, 2}},
		{[]int32{5, 1, 1}, []int32{0, 1, 0, 0, 0, 2, 0}},
		{[]int32{20, 20, 10}, []int32{0, 1, 2, 0, 1}},
	} {
		var ms []Member
		for _, w := range c.weights {
			ms = append(ms, Member{Weight: int(w)})
		}
		got := schedule(ms)
		if len(got) != len(c.want) {
			t.Errorf("weights %v: a round is %v, want one like %v", c.weights, got, c.want)
			continue
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("weights %v: a round is %v, want %v", c.weights, got, c.want)
		}
	}
}

// A round stays small however large the weights are, and building it takes no time that a change of the pool would feel.
func TestRoundRobinBoundsItsSchedule(t *testing.T) {
	var ms []Member
	for i := range 2000 {
		ms = append(ms, Member{Weight: 1 + i*31})
	}
	if n := len(schedule(ms)); n > 2*maxSchedule {
		t.Errorf("a round of 2000 members has %d turns", n)
	}
	for i := range ms {
		ms[i].Weight = 100
	}
	if n := len(schedule(ms)); n != len(ms) {
		t.Errorf("a round of 2000 equal members has %d turns, want one each", n)
	}
}
