package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// childEnv makes this test's binary start a process of the lab, say its pid and its directory, and wait to be killed.
const childEnv = "KVIP_LAB_TEST_CHILD"

func childMain() {
	d, err := newRunDir()
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := StartProcess(ProcessConfig{Name: "sleep", Path: "sleep", Args: []string{"60"}, LogPath: filepath.Join(d.path, "log")})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Pid(), d.path)
	<-p.Exited()
}

func TestNothingOutlivesAKilledProgram(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // another user of the lab would sweep the directory, too
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), childEnv+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	_, err = fmt.Fscan(out, &pid, &dir)
	if err := errors.Join(err, parent.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	eventually(t, func() error { return alive(pid) })
	if !isDir(dir) {
		t.Fatalf("%s: a killed program cannot have removed it", dir)
	}
	d, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	if isDir(dir) {
		t.Errorf("%s is still there after the next use of the lab", dir)
	}
	sweepRunDirs()
	if !isDir(d.path) {
		t.Error("a directory in use was swept")
	}
	if err := d.remove(); err != nil {
		t.Error(err)
	}
}

// alive returns an error while the process runs. A killed orphan stays as a zombie where no init reaps it.
func alive(pid int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(b), ") Z ") {
		return nil
	}
	return fmt.Errorf("process %d lives on", pid)
}

func sleeper(t *testing.T, script string) *Process {
	t.Helper()
	p, err := StartProcess(ProcessConfig{Name: "sh", Path: "sh", Args: []string{"-c", script}, LogPath: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestAProcessOutlivesTheThreadThatAskedForIt(t *testing.T) {
	var p *Process
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		p = sleeper(t, "exec sleep 60")
	})
	wg.Wait()
	select {
	case <-p.Exited():
		t.Error("it died with the thread")
	case <-time.After(200 * time.Millisecond):
	}
}

func TestKillTakesTheWholeGroup(t *testing.T) {
	p := sleeper(t, "sleep 60 & echo $!; wait")
	var child int
	eventually(t, func() error {
		b, err := os.ReadFile(p.LogPath())
		if err == nil {
			child, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err
	})
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := alive(child); err != nil {
		t.Error(err)
	}
}

func TestAProcessThatIgnoresSIGTERMIsKilledAndReported(t *testing.T) {
	p := sleeper(t, "trap '' TERM; echo deaf; while :; do sleep 1; done")
	eventually(t, func() error {
		if !strings.Contains(p.LogTail(), "deaf") {
			return errors.New("not yet")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "deaf") {
		t.Errorf("Stop: %v", err)
	}
	if p.Running() {
		t.Error("it still runs")
	}
	if err := p.Pause(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Pause of what has ended: %v", err)
	}
}

func TestTheCacheBuildsOnceWhoeverAsks(t *testing.T) {
	t.Setenv("KVIP_TEST_CACHE", t.TempDir())
	var built atomic.Int32
	fail := errors.New("no luck")
	if _, err := Cached(t.Context(), "part", func(_ context.Context, dir string) error {
		return errors.Join(fail, os.WriteFile(filepath.Join(dir, "half"), nil, 0o644))
	}); !errors.Is(err, fail) {
		t.Fatalf("failed build: %v", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := Cached(t.Context(), "part", func(_ context.Context, dir string) error {
				built.Add(1)
				return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o644)
			})
			if err != nil || !isFile(filepath.Join(dir, "whole")) || isFile(filepath.Join(dir, "half")) {
				t.Errorf("%s: %v", dir, err)
			}
		})
	}
	wg.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
	cache, _ := CacheDir()
	if left, _ := filepath.Glob(filepath.Join(cache, ".tmp-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestACacheLockIsWaitedForNoLongerThanTheContext(t *testing.T) {
	t.Setenv("KVIP_TEST_CACHE", t.TempDir())
	unlock, err := lockFile(t.Context(), "part")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Cached(ctx, "part", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestErrorsNameTheCommandItsOutputAndTheFix(t *testing.T) {
	_, err := RunCommand(t.Context(), "", []string{"WORD=spoken"}, "sh", "-c", "for i in $(seq 40); do echo $WORD $i; done; exit 3")
	if err == nil || !strings.Contains(err.Error(), "sh -c") || !strings.Contains(err.Error(), "exit status 3") ||
		!strings.Contains(err.Error(), "spoken 40") || strings.Contains(err.Error(), "spoken 10\n") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := RunCommand(ctx, "", nil, "sh", "-c", "sleep 60 & wait"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	t.Setenv("PATH", t.TempDir()) // nothing is installed, nor can be
	_, err = newJavaApp(t.Context(), DefaultKafka, false)
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "apt-get install -y "+jre) {
		t.Errorf("%v", err)
	}
	t.Setenv("KVIP_TEST_CACHE", t.TempDir())
	_, err = MavenJars(t.Context(), "jars", "group:artifact:1")
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), jre+" "+maven) {
		t.Errorf("%v", err)
	}
}
