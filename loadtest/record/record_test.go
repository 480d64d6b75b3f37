package record

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvip/kvip/loadtest/failure"
)

func TestMergingLosesNothing(t *testing.T) {
	whole := NewRecorder()
	parts := []*Recorder{NewRecorder(), NewRecorder(), NewRecorder()}
	for _, r := range append(parts, whole) {
		r.Plan(3*time.Second, time.Second)
		r.Begin()
	}
	v := time.Duration(1)
	for i := range 3000 {
		v = (v*7919 + time.Duration(i)) % (90 * time.Second) // nanoseconds to beyond a minute
		at := time.Duration(i) * 1100 * time.Microsecond     // to beyond the last window
		for _, r := range []*Recorder{whole, parts[i%3]} {
			r.Intend(at)
			r.Start(at, v/5)
			r.Answer(at+v, Operation, v)
			r.Took(Stage(i%int(Stages)), v/3)
			r.Saw(Poll, v/7)
			r.Received(i)
			if i%10 == 0 {
				r.Fail(at, failure.Class(1+i%int(failure.Classes-1)), "")
				r.Lost(failure.Reset)
				r.PartitionError()
			}
		}
	}
	merged := NewResult()
	for _, p := range parts {
		merged.Merge(&p.Result)
	}
	for s := range merged.Stages {
		if !merged.Stages[s].Equals(whole.Stages[s]) {
			t.Errorf("%s: merged histogram differs from the one that saw every value", Stage(s))
		}
		merged.Stages[s], whole.Stages[s] = nil, nil
	}
	for w := range merged.Windows {
		if !merged.Windows[w].Latency.Equals(whole.Windows[w].Latency) {
			t.Errorf("window %d: merged histogram differs", w)
		}
		merged.Windows[w].Latency, whole.Windows[w].Latency = nil, nil
	}
	if diff := cmp.Diff(whole.Result, *merged); diff != "" {
		t.Errorf("(-whole +merged):\n%s", diff)
	}
}

func TestTurnsOfATargetFollowEachOther(t *testing.T) {
	sum := NewResult()
	for turn := range 2 {
		r := NewRecorder()
		r.Plan(1500*time.Millisecond, time.Second)
		r.Start(0, 0)
		r.Answer(1200*time.Millisecond, Operation, time.Duration(turn+1)*time.Millisecond)
		sum.Append(&r.Result)
	}
	if sum.Elapsed != 3*time.Second || sum.Answered != 2 || len(sum.Windows) != 4 || sum.Windows[1].Answered != 1 || sum.Windows[3].Latency.TotalCount() != 1 {
		t.Errorf("got %+v", sum)
	}
}

func TestWhatBelongsToNoOperationCountsDuringTheMeasurementOnly(t *testing.T) {
	r := NewRecorder()
	r.Plan(time.Second, time.Second)
	load := func() {
		r.Lost(failure.Reset)
		r.Received(1)
		r.PartitionError()
		r.Saw(Poll, time.Millisecond)
		r.Holds(0, 5)
	}
	load()
	r.Begin()
	r.End()
	load()
	if r.Bytes+r.PartitionErrors+r.Dropped[failure.Reset] != 0 || r.Stages[Poll].TotalCount() != 0 || r.Windows[0].Open != 0 {
		t.Errorf("counted %+v", r.Result)
	}
}

func TestDetailsStayFew(t *testing.T) {
	a, b := NewRecorder(), NewRecorder()
	for range 100 {
		for _, r := range []*Recorder{a, b} {
			if r.Windows == nil {
				r.Plan(time.Second, time.Second)
			}
			r.Fail(0, failure.Reset, "seen")
		}
	}
	a.Merge(&b.Result)
	if n := len(a.Details[failure.Reset]); n != samples {
		t.Errorf("%d details kept, want %d", n, samples)
	}
	if got := a.TargetFailures(); got != 200 {
		t.Errorf("%d target failures, want 200", got)
	}
}

func TestACutMeasurementEndsWithItsLastWindow(t *testing.T) {
	r := NewRecorder()
	r.Plan(10*time.Second, time.Second)
	r.Intend(2500 * time.Millisecond)
	r.Cut(2600 * time.Millisecond)
	r.Answer(2700*time.Millisecond, Operation, time.Millisecond) // asked before, answered after
	if r.Elapsed != 2600*time.Millisecond || len(r.Windows) != 3 || r.Windows[2].Intended != 1 || r.Windows[2].Answered != 1 {
		t.Errorf("%s in %d windows", r.Elapsed, len(r.Windows))
	}
	if r.Cut(time.Hour); r.Elapsed != 2600*time.Millisecond {
		t.Errorf("cut later than its end: %s", r.Elapsed)
	}
}
