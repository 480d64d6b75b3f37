package job

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ledger is who was acknowledged and who came back. Every record carries the
// run's own mark, so records of other runs on the same topic are passed over.
type ledger struct {
	run         string
	countErrors bool // steady: the verdict names errors

	mu     sync.Mutex
	acked  map[int]bool
	seen   map[int]bool
	errors int
}

func newLedger() *ledger {
	return &ledger{run: rand.Text()[:12], acked: map[int]bool{}, seen: map[int]bool{}}
}

func (l *ledger) key(n int) string { return strconv.Itoa(n) }

// value is different in length and content for neighbours, so a mix-up shows.
func (l *ledger) value(n int) string {
	return fmt.Sprintf("%s/%d/%s", l.run, n, strings.Repeat("x", n%64))
}

func (l *ledger) ack(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[n] = true
}

// see notes a consumed record; a record of this run that is not what was sent is an error.
func (l *ledger) see(r Record) error {
	number, ours := strings.CutPrefix(r.Value, l.run+"/")
	if !ours {
		return nil
	}
	number, _, _ = strings.Cut(number, "/")
	n, err := strconv.Atoi(number)
	if err != nil || r.Key != l.key(n) || r.Value != l.value(n) {
		return fmt.Errorf("record differs from what was sent: key %q, value %q", r.Key, r.Value)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[n] = true
	return nil
}

// failed counts an error that the application saw.
func (l *ledger) failed(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors++
	logf("error: "+format, args...)
}

// missing is the acknowledged records that have not come back, in order.
func (l *ledger) missing() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var missing []int
	for n := range l.acked {
		if !l.seen[n] {
			missing = append(missing, n)
		}
	}
	slices.Sort(missing)
	return missing
}

// String is the verdict's figures.
func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	figures := fmt.Sprintf("produced=%d consumed=%d", len(l.acked), len(l.seen))
	if l.countErrors {
		figures += fmt.Sprintf(" errors=%d", l.errors)
	}
	return figures
}
