package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// CacheDir is where everything lives that is fetched or built once: $KVIP_TEST_CACHE, or kvip-test in the user's cache
// directory (~/.cache on Linux). It can be deleted at any time when nothing of the lab runs.
func CacheDir() (string, error) {
	dir := os.Getenv("KVIP_TEST_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("lab: no place for the cache, set KVIP_TEST_CACHE to a directory: %w", err)
		}
		dir = filepath.Join(user, "kvip-test")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("lab: KVIP_TEST_CACHE: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("lab: cannot make the cache directory, set KVIP_TEST_CACHE to one that can be written: %w", err)
	}
	return dir, nil
}

// Cached returns the directory called name in the cache and has build fill it when it is not there yet. Whoever asks
// first builds, in a temporary directory that takes its final name only after build returned nil; others, in this
// process or another, wait. What build writes must not depend on the path of the directory it is given.
func Cached(ctx context.Context, name string, build func(ctx context.Context, dir string) error) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	final := filepath.Join(cache, name)
	if isDir(final) {
		return final, nil
	}
	unlock, err := lockFile(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(final) {
		return final, nil
	}
	// The lock is ours, so any earlier attempt's directory belongs to a process that died.
	left, _ := filepath.Glob(filepath.Join(cache, ".tmp-"+name+"-*"))
	for _, l := range left {
		_ = os.RemoveAll(l)
	}
	tmp, err := os.MkdirTemp(cache, ".tmp-"+name+"-*")
	if err != nil {
		return "", fmt.Errorf("lab: build %s: %w", name, err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("lab: build %s: %w", name, err)
	}
	if err := build(ctx, tmp); err != nil {
		return "", fmt.Errorf("lab: build %s: %w", name, err)
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", fmt.Errorf("lab: build %s: %w", name, err)
	}
	return final, nil
}

// lockFile takes the cache-wide lock called name, waiting until ctx ends. The kernel releases it when this process dies.
func lockFile(ctx context.Context, name string) (unlock func(), err error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab: lock %s: %w", name, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lab: lock %s: %w", name, err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lab: lock %s: %w", f.Name(), err)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lab: waiting for %s, which another process holds: %w", f.Name(), err)
		}
	}
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// sleep waits for d, or less when ctx ends, and then returns why it ended.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const runPrefix = "kvip-lab-"

// runDir is the directory of one running thing. A lock inside it, held as long as this process lives, tells the
// directories in use from those that a killed process left.
type runDir struct {
	path string
	lock *os.File
}

func newRunDir() (*runDir, error) {
	sweepRunDirs()
	// Locked before it gets the name that sweepRunDirs looks for: a sweep must not take it for an abandoned one.
	tmp, err := os.MkdirTemp("", ".new-"+runPrefix)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	lock, err := tryLock(filepath.Join(tmp, ".lock"), os.O_CREATE)
	if err != nil {
		_ = os.RemoveAll(tmp)
		return nil, fmt.Errorf("lab: %w", err)
	}
	path := filepath.Join(filepath.Dir(tmp), filepath.Base(tmp)[len(".new-"):])
	if err := os.Rename(tmp, path); err != nil {
		_ = lock.Close()
		_ = os.RemoveAll(tmp)
		return nil, fmt.Errorf("lab: %w", err)
	}
	return &runDir{path: path, lock: lock}, nil
}

func (d *runDir) remove() error {
	err := os.RemoveAll(d.path)
	_ = d.lock.Close()
	return err
}

// sweepRunDirs removes what processes left behind that died before they could.
func sweepRunDirs() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), runPrefix+"*"))
	for _, d := range dirs {
		lock, err := tryLock(filepath.Join(d, ".lock"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // in use, or another user's
		}
		_ = os.RemoveAll(d)
		if lock != nil {
			_ = lock.Close()
		}
	}
}

func tryLock(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
