package clients

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestVerdictIsTheLastWordAndAgreesWithTheExitStatus(t *testing.T) {
	exit1 := exec.Command("false").Run()
	for _, tc := range []struct {
		name    string
		output  string
		failure error
		want    Result
		fault   string // in the error
	}{
		{name: "once", output: "topic t: created\nOK produced=20 consumed=20\n", want: Result{OK: true, Produced: 20, Consumed: 20}},
		{name: "steady", output: "OK produced=9 consumed=11 errors=2", want: Result{OK: true, Produced: 9, Consumed: 11, Errors: 2}},
		{name: "bootstraps", output: "OK started=5 failed=1\n", want: Result{OK: true, Started: 5, Failed: 1}},
		{name: "a log line after it", output: "OK produced=1 consumed=1\n%4|TERMINATE|rdkafka\n", want: Result{OK: true, Produced: 1, Consumed: 1}},
		{name: "job failed", output: "error: x\nFAIL produce: broker gone\n", failure: exit1, want: Result{Reason: "produce: broker gone"}},
		{name: "OK, then crashed", output: "OK produced=1 consumed=1\n", failure: exit1, fault: "exit status 1"},
		{name: "FAIL with status 0", output: "FAIL x\n", fault: `"FAIL x"`},
		{name: "hung", output: "FAIL x\n", failure: context.DeadlineExceeded, fault: "deadline"},
		{name: "said nothing", output: "", fault: `verdict ""`},
		{name: "unknown figure", output: "OK produced=1 lost=1\n", fault: `"lost=1"`},
		{name: "no figure", output: "OK produced=many\n", fault: `"produced=many"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := verdict(tc.output, tc.failure)
			if tc.fault != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fault) {
					t.Fatalf("error %v, want one that says %q", err, tc.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Output = tc.output
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("(-want +got)\n", diff)
			}
		})
	}
}

// script is a program for tests.
type script string

func (s script) install(context.Context) (command, env []string, err error) {
	return []string{"sh", "-c", string(s)}, nil, nil
}

func TestRunEndsAHangingProgramAndItsChildren(t *testing.T) {
	alive := filepath.Join(t.TempDir(), "alive")
	t.Setenv("ALIVE", alive)
	hanging := Client{Name: "hanging", program: script(`(while :; do touch "$ALIVE"; sleep 0.05; done) & wait`)}
	cancelled := errors.New("test says so")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for !exists(alive) {
			time.Sleep(10 * time.Millisecond)
		}
		cancel(cancelled)
	}()
	if _, err := hanging.Run(ctx, Options{}); !errors.Is(err, cancelled) {
		t.Errorf("Run returned %v, want the context's cause", err)
	}
	if err := os.Remove(alive); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if exists(alive) {
		t.Error("a child of the program outlived Run")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestRowsHaveTheirSourcesAndADifferentName(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range All {
		if seen[c.Name] || c.Library == "" || !(c.Kafka4 || c.Legacy) {
			t.Errorf("row %+v: name taken, no library, or for no broker", c)
		}
		seen[c.Name] = true
		var needs []string
		switch p := c.program.(type) {
		case python:
			needs = []string{"python/" + p.program, "python/requirements/" + p.requirements}
		case golang:
			needs = []string{"go/" + p.pkg + "/*.go"}
			if p.modfile != "" {
				needs = append(needs, "go/"+p.modfile)
			}
		}
		if _, _, err := sources(needs...); err != nil {
			t.Errorf("client %s: %v", c.Name, err)
		}
	}
}

// npm writes the address of the registry at hand into a lock file unless told not to (omit-lockfile-registry-resolved).
func TestLockFileNamesNoRegistry(t *testing.T) {
	b, err := os.ReadFile("node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), `"resolved"`) {
		t.Error("node/package-lock.json names a registry: npm install --package-lock-only --omit-lockfile-registry-resolved")
	}
}
