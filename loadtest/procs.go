package loadtest

import "runtime"

// spareProcessor lets the Go runtime use one processor more than loops occupy. On a machine with no more, or a process
// that is confined to as many, it would take a loop's away whenever that waits for events, and its watcher would wake
// thousands of times a second to look for such a chance: a third of the one processor went there. undo restores.
func spareProcessor(loops int) (undo func()) {
	had := runtime.GOMAXPROCS(0)
	if had > loops {
		return func() {}
	}
	runtime.GOMAXPROCS(loops + 1)
	return func() { runtime.GOMAXPROCS(had) }
}
