//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvip/kvip/loadtest/lab"
	"github.com/kvip/kvip/loadtest/report"
)

// What bootstraps ask for, as clients of all ages do: two of these each.
const kinds = "metadata-all@12=2,metadata-all@4=1,metadata-one@13=2,metadata-one@7=1,metadata-brokers@12=2,describe-cluster@1=1," +
	"find-coordinator@0=1,find-coordinator@2=1,find-coordinator@3=1,find-coordinator@6=1"

// loaded bootstraps at a gateway in every way for a time, while disturb runs, and returns what came of it. The brokers are
// asked what is true meanwhile. Clients come from as many addresses as a small fleet has: the ring deals by address, and a
// broker that starts slowly has few of them at first.
func loaded(t *testing.T, g *gateway, k *lab.Kafka, length time.Duration, disturb func(end time.Time)) *report.Run {
	t.Helper()
	file := filepath.Join(t.TempDir(), "result.json")
	ctx, cancel := context.WithTimeout(context.Background(), length+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, kvipBinary, "loadtest", "--target", g.addr, "--scenario", "storm", "--rate", fmt.Sprint(chaosRate),
		"--duration", length.String(), "--cluster-id", k.ClusterID(), "--topic", topics[0], "--topic", topics[1], "--asks", kinds, "--draw", "2",
		"--truth", strings.Join(k.Bootstrap(), ","), "--truth-bound", bound.String(),
		"--source-count", "1000", "--assert", "failed=0,failed_local=0", "--json", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	reaped := false
	defer func() { // a test that gave up
		if !reaped {
			cancel()
			<-ended
		}
	}()
	time.Sleep(2 * time.Second) // its warm-up
	disturb(time.Now().Add(length - 2*time.Second))
	err := <-ended // what failed is in the result
	reaped = true
	run := &report.Run{}
	raw, fault := os.ReadFile(file)
	if fault == nil {
		fault = json.Unmarshal(raw, run)
	}
	if fault != nil {
		t.Fatalf("the load test has no result: %v, %v\n%s", err, fault, said.String())
	}
	return run
}

// flawless makes sure that no bootstrap failed, and returns how many did for an answer that was not true.
func flawless(t *testing.T, run *report.Run) (untrue uint64) {
	t.Helper()
	s := &run.Sides[0]
	for _, f := range s.Failures {
		t.Errorf("%s: %d, idle %d, for example %s", f.Class, f.Count, f.Idle, strings.Join(f.Examples, "; "))
		if f.Class == "untrue" {
			untrue = f.Count
		}
	}
	if s.Done == 0 || s.Done != s.Intended {
		t.Errorf("%d of %d bootstraps done, %d failed, %d on this machine", s.Done, s.Intended, s.Failed, s.Local)
	}
	return untrue
}
