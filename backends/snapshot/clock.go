package snapshot

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Time is a reading of the clock by which ages are judged: nanoseconds of CLOCK_BOOTTIME, which, unlike the monotonic
// clock of package time, goes on while the machine is suspended. It means nothing in another boot.
type Time int64

// Now reads the clock. It is a raw system call of some 100 ns that never blocks, so it skips the scheduler's bookkeeping.
func Now() Time {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0)
	return Time(ts.Nano())
}

// Add returns the time d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns how much later t is than u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
