package loadtest

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/scenario"
)

// live is one line on a terminal that says how far the run is. Without a terminal it is nil and shows nothing.
type live struct {
	w        io.Writer
	answered uint64
	since    time.Duration
}

func newLive(w io.Writer) *live {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return &live{w: w}
}

func (l *live) show(target string, p scenario.Progress) {
	if l == nil {
		return
	}
	if p.Since < l.since { // a new turn
		l.answered, l.since = 0, 0
	}
	rate := float64(p.Answered-min(l.answered, p.Answered)) / max((p.Since-l.since).Seconds(), 1e-3)
	l.answered, l.since = p.Answered, p.Since
	fmt.Fprintf(l.w, "\r\x1b[K%s  %s  %.0f/s  p99 %s  failed %d  local %d  connections %d", target, p.Since.Round(time.Second), rate,
		p.P99.Round(10*time.Microsecond), p.Failed, p.Local, p.Open)
}

// clear makes room for the result.
func (l *live) clear() {
	if l != nil {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}
