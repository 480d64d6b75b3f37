package cputime

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestTheClockSaysWhatProcStatSays burns CPU in a child and compares the two.
func TestTheClockSaysWhatProcStatSays(t *testing.T) {
	child := exec.Command("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo; read wait")
	stdin, _ := child.StdinPipe()
	stdout, _ := child.StdoutPipe()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close(); _ = child.Wait() }()
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	got, err := Of(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var user, system int64
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+2:]))
	_, _ = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	ticks := time.Duration(user+system) * 10 * time.Millisecond
	if diff := got - ticks; diff < -20*time.Millisecond || diff > 30*time.Millisecond || got < 20*time.Millisecond {
		t.Errorf("clock %s, /proc/PID/stat %s", got, ticks)
	}
}

func TestAProcessThatIsGoneIsAnError(t *testing.T) {
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	if d, err := Of(child.Process.Pid); err == nil {
		t.Errorf("read %s of a process that is gone", d)
	}
}
