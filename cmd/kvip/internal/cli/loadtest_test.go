package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTheLoadTestsFirstCommandsWork runs what loadtest/README.md tells a newcomer to type, shorter and on a free port.
func TestTheLoadTestsFirstCommandsWork(t *testing.T) {
	text, err := os.ReadFile("../../../../loadtest/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	var commands [][]string
	vip := freeAddress(t)
	for line := range strings.Lines(block) {
		line, _, _ = strings.Cut(line, "#")
		line, _, _ = strings.Cut(line, "&")
		if args, ok := strings.CutPrefix(line, "bin/kvip "); ok {
			commands = append(commands, strings.Fields(strings.ReplaceAll(args, "127.0.0.1:9092", vip)))
		}
	}
	if len(commands) != 2 || commands[0][0] != "demo" || commands[1][0] != "loadtest" {
		t.Fatalf("the README begins with %q: want a demo and a loadtest", commands)
	}
	dir := t.TempDir()
	command := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		var out bytes.Buffer
		c := exec.Command("kvip", args...)
		c.Dir, c.Stdout, c.Stderr = dir, &out, &out
		return c, &out
	}
	demo, said := command(append(commands[0], "--admin", "127.0.0.1:0")...)
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	load, out := command(append(commands[1], "--duration", "1s")...)
	err = load.Run()
	if interrupted := demo.Process.Signal(syscall.SIGTERM); interrupted != nil {
		t.Error(interrupted)
	}
	if err := demo.Wait(); err != nil {
		t.Errorf("demo: %v\n%s", err, said)
	}
	if err != nil && !strings.Contains(out.String(), "VOID") { // a busy machine may void it: no matter here
		t.Errorf("%v: %v\n%s", commands[1], err, out)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "report.html")); err != nil || !bytes.Contains(page, []byte("<svg")) {
		t.Errorf("report of %d bytes, %v\n%s", len(page), err, out)
	}
	if strings.Contains(out.String(), "error_code") || strings.Contains(out.String(), "refused") {
		t.Errorf("failures:\n%s", out)
	}
}
