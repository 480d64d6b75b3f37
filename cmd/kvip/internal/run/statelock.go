package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// stateLock is the file in state_dir whose lock a kvip holds while it lives; it says whose it is. The kernel lets go of
// the lock when the process ends, however it ends, so that a crash leaves nothing to clean up.
const stateLock = "kvip.lock"

// lockState makes the state_dir this process's alone: two that save there would each start from what the other knew, of
// another cluster if their configurations differ. release lets go of it.
func lockState(dir string, log *zap.Logger) (release func(), err error) {
	path := filepath.Join(dir, stateLock)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("state_dir: %w: let kvip's user write there, or name another", err)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		holder := "another kvip"
		if pid, err := os.ReadFile(path); err == nil && len(pid) > 0 && len(pid) < 16 {
			holder = "the kvip with pid " + strings.TrimSpace(string(pid))
		}
		_ = f.Close()
		return nil, fmt.Errorf("state_dir %s is in use by %s: stop that one, or give this one a state_dir of its own (processes that share a port by share_port need one each, too)", dir, holder)
	case err != nil:
		log.Warn("state_dir cannot be locked: see to it that no other kvip uses it", zap.String("state_dir", dir), zap.Error(err))
		return func() { _ = f.Close() }, nil
	}
	// Only a person reads it: the lock is what counts.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return func() { _ = f.Close() }, nil
}
