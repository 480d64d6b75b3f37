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
	whole.Begin()
	for _, p := range parts {
		p.Begin()
	}
	v := time.Duration(1)
	for i := range 3000 {
		v = (v*7919 + time.Duration(i)) % (90 * time.Second) // nanoseconds to beyond a minute
		for _, r := range []*Recorder{whole, parts[i%3]} {
			r.Start()
			r.Answer(v)
			r.Took(Stage(i%int(Stages)), v/3)
			r.Received(i)
			if i%10 == 0 {
				r.Fail(failure.Class(1+i%int(failure.Classes-1)), "")
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
	if diff := cmp.Diff(whole.Result, *merged); diff != "" {
		t.Errorf("(-whole +merged):\n%s", diff)
	}
}

func TestNothingIsCountedOutsideTheMeasurement(t *testing.T) {
	r := NewRecorder()
	load := func() {
		r.Start()
		r.Answer(time.Millisecond)
		r.Fail(failure.Reset, "detail")
		r.Lost(failure.Reset)
		r.Received(1)
		r.PartitionError()
	}
	load()
	r.Begin()
	r.End()
	load()
	if r.Started+r.Answered+r.Bytes+r.PartitionErrors+r.Failed[failure.Reset]+r.Dropped[failure.Reset] != 0 || r.Stages[Operation].TotalCount() != 0 || len(r.Details) != 0 {
		t.Errorf("counted %+v", r.Result)
	}
}

func TestDetailsStayFew(t *testing.T) {
	a, b := NewRecorder(), NewRecorder()
	a.Begin()
	b.Begin()
	for range 100 {
		a.Fail(failure.Reset, "a")
		b.Fail(failure.Reset, "b")
	}
	a.Merge(&b.Result)
	if n := len(a.Details[failure.Reset]); n != samples {
		t.Errorf("%d details kept, want %d", n, samples)
	}
	if got := a.TargetFailures(); got != 200 {
		t.Errorf("%d target failures, want 200", got)
	}
}
