package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// slice is the shortest that the kernel grants a thread at a time (EEVDF, Linux 6.12): one that asks for little at a time
	// is let in at once when it wakes, where others would hold the processor for milliseconds. It needs no privilege.
	slice = 100 * time.Microsecond
	// favoured is the best nice value, which needs CAP_SYS_NICE or a limit (ulimit -e).
	favoured = -20
)

// hurry has the kernel run the calling thread soon after what it waits for. undo gives it back as it was, but for its
// timer slack, which becomes the process's. A thread that somebody gave a policy or a nice value of its own keeps them.
func hurry() (undo func()) {
	// The kernel may else wake this thread 50 us late, to save power. Errors here and below leave it at that.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	undo = func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil || was.Policy != unix.SCHED_NORMAL || was.Nice != 0 {
		return undo
	}
	quick := *was
	quick.Runtime, quick.Nice = uint64(slice), favoured
	if unix.SchedSetAttr(0, &quick, 0) != nil {
		quick.Nice = was.Nice
		if unix.SchedSetAttr(0, &quick, 0) != nil {
			return undo
		}
	}
	slack := undo
	return func() {
		slack()
		_ = unix.SchedSetAttr(0, was, 0)
	}
}
