package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const tailLines = 30

// RunCommand runs a program to its end in dir (the current directory when empty) with env added to this process's
// environment. It returns what the program wrote; an error holds the command and the last 30 lines of that.
func RunCommand(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	// A group of its own, so that a cancelled build's children go with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out, fmt.Errorf("%s: %w\n%s", cmd, err, tail(out))
	}
	return out, nil
}

func tail(out []byte) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// EnsureCommand returns the path of a program, after installing pkgs with [EnsureDebian] when it is not on PATH.
func EnsureCommand(ctx context.Context, name string, pkgs ...string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	if err := EnsureDebian(ctx, pkgs...); err != nil {
		return "", fmt.Errorf("lab: %s is not on PATH: %w", name, err)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("lab: %s is not on PATH although its packages are installed (%s): %w", name, strings.Join(pkgs, " "), err)
	}
	return path, nil
}

// ErrNotInstalled is in the error of whatever needs a program that is missing and may not be installed from here. The
// error's text has the command that installs it.
var ErrNotInstalled = errors.New("not installed")

// EnsureDebian installs those of the Debian packages that are not there yet. It does so only as root and where apt-get
// is; elsewhere the error says what to run.
func EnsureDebian(ctx context.Context, pkgs ...string) error {
	var missing []string
	for _, p := range pkgs {
		if out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status}", p).Output(); err != nil || string(out) != "installed" {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	install := "apt-get install -y " + strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%w, run as root: %s", ErrNotInstalled, install)
	}
	unlock, err := lockFile(ctx, "apt")
	if err != nil {
		return err
	}
	defer unlock()
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	if err := aptUpdate(ctx, env); err != nil {
		return fmt.Errorf("%w, and could not be installed (%s): %w", ErrNotInstalled, install, err)
	}
	args := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	if _, err := RunCommand(ctx, "", env, "apt-get", args...); err != nil {
		return fmt.Errorf("%w, and could not be installed: %w", ErrNotInstalled, err)
	}
	return nil
}

var aptUpdated bool // held by the "apt" lock

func aptUpdate(ctx context.Context, env []string) error {
	if aptUpdated {
		return nil
	}
	_, err := RunCommand(ctx, "", env, "apt-get", "update")
	aptUpdated = err == nil
	return err
}
