package snapshot

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func boottime() Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return Time(ts.Nano())
}

func TestNowIsTheKernelsBoottimeAlsoAfterASuspension(t *testing.T) {
	follows := func(when string) {
		before := boottime()
		now := Now()
		if after := boottime(); now < before.Add(-time.Millisecond) || now > after.Add(time.Millisecond) {
			t.Errorf("%s: %d is not between %d and %d", when, now, before, after)
		}
	}
	follows("at first")
	follows("again")
	// A suspension is a jump of wall time over monotonic time; boottime has jumped with it.
	apart.Add(-int64(time.Hour))
	ahead.Add(-int64(time.Hour))
	follows("after a suspension")
	follows("and from then on")
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
