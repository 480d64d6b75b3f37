package snapshot

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Time is a reading of the clock by which ages are judged: nanoseconds of CLOCK_BOOTTIME, which, unlike the monotonic
// clock of package time, goes on while the machine is suspended. It means nothing in another boot.
type Time int64

// Now reads the clock. Asking the kernel for CLOCK_BOOTTIME is a system call, ten times the price of time.Now, which a
// lookup would pay twice; so the distance of the two clocks is remembered, and asked for again when wall time and
// monotonic time have moved apart: a suspension moves them, and so does setting the clock, which costs one call.
func Now() Time { return At(time.Now()) }

// At converts a reading of time.Now that was just taken.
func At(t time.Time) Time {
	mono := int64(t.Sub(started))
	if gap := t.UnixNano() - mono - apart.Load(); gap > maxGap || gap < -maxGap {
		return resync()
	}
	return Time(mono + ahead.Load())
}

// maxGap is how far wall and monotonic time may drift apart, by the slewing of NTP, before the kernel is asked.
const maxGap = int64(10 * time.Millisecond)

var (
	started = time.Now()
	// apart is wall time minus monotonic time, ahead CLOCK_BOOTTIME minus monotonic time, at the last resync.
	apart, ahead atomic.Int64
)

func resync() Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on a kernel that runs Go
	t := time.Now()
	mono := int64(t.Sub(started))
	ahead.Store(ts.Nano() - mono)
	apart.Store(t.UnixNano() - mono)
	return Time(ts.Nano())
}

// Add returns the time d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns how much later t is than u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
