package lab

import (
	"bytes"
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessConfig says what [StartProcess] runs.
type ProcessConfig struct {
	Name    string   // for messages
	Path    string   // the program, looked up on PATH when it has no slash
	Args    []string // without the program's name
	Env     []string // added to this process's environment
	Dir     string   // working directory
	LogPath string   // its standard output and error are appended here
}

// Process is a program that can be killed, paused and started again. It runs in a process group of its own and dies
// with this process, however this process dies. Its methods may be called from several goroutines.
type Process struct {
	cfg ProcessConfig

	mu     sync.Mutex
	cur    *execution // the latest
	paused bool
}

// execution is one run of the program, from fork to reap.
type execution struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once it is reaped and its group is gone
	state  string        // how it ended, after exited

	mu     sync.Mutex // signals and the reaper take turns, so that a reused pid is never signalled
	reaped bool
	wanted bool // its end was asked for
}

// StartProcess starts a program and returns once it runs.
func StartProcess(cfg ProcessConfig) (*Process, error) {
	p := &Process{cfg: cfg}
	if err := p.start(); err != nil {
		return nil, err
	}
	return p, nil
}

// become has the next start run another program with other arguments.
func (p *Process) become(cfg ProcessConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg.Path, p.cfg.Args = cfg.Path, cfg.Args
}

func (p *Process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cur != nil && !p.cur.done() {
		return fmt.Errorf("lab: start %s: it runs already, pid %d", p.cfg.Name, p.cur.cmd.Process.Pid)
	}
	log, err := os.OpenFile(p.cfg.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("lab: start %s: %w", p.cfg.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.cfg.Path, p.cfg.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.cfg.Dir, log, log
	cmd.Env = append(os.Environ(), p.cfg.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	e := &execution{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go e.run(started)
	if err := <-started; err != nil {
		return fmt.Errorf("lab: start %s: %w", p.cfg.Name, err)
	}
	p.cur, p.paused = e, false
	return nil
}

// run forks the program and reaps it. Pdeathsig fires when the thread that forked ends, not the process, so that thread
// is kept for this goroutine until the program has ended.
func (e *execution) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := e.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	pid := e.cmd.Process.Pid
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	// It is a zombie now, so its pid and group are still its own: end what is left of the group, then reap. The rest of a
	// group dies when the kernel gets round to it, not when the signal is sent.
	for give := time.Now().Add(killWait); ; time.Sleep(2 * time.Millisecond) {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		if !groupLives(pid) || time.Now().After(give) {
			break
		}
	}
	e.mu.Lock()
	_ = e.cmd.Wait()
	e.reaped = true
	e.mu.Unlock()
	e.state = e.cmd.ProcessState.String()
	close(e.exited)
}

// groupLives says whether a process of the group still runs; zombies do not.
func groupLives(group int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has just ended
		}
		// pid (name) state ppid pgrp ...; a name may hold anything, so look behind its end.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

func (e *execution) done() bool {
	select {
	case <-e.exited:
		return true
	default:
		return false
	}
}

func (e *execution) signal(sig syscall.Signal) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reaped {
		return os.ErrProcessDone
	}
	e.wanted = e.wanted || sig == syscall.SIGKILL || sig == syscall.SIGTERM
	return syscall.Kill(-e.cmd.Process.Pid, sig)
}

func (p *Process) current() *execution {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cur
}

// Name is the name it was given.
func (p *Process) Name() string { return p.cfg.Name }

// Pid is the process id of the latest start.
func (p *Process) Pid() int { return p.current().cmd.Process.Pid }

// LogPath is the file that holds everything it wrote to its standard output and error, over all its starts.
func (p *Process) LogPath() string { return p.cfg.LogPath }

// Exited is closed once the latest start has ended.
func (p *Process) Exited() <-chan struct{} { return p.current().exited }

// Running reports whether it is up and not paused.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.cur.done() && !p.paused
}

// killWait is how long the kernel gets to tear down a process after SIGKILL.
const killWait = 10 * time.Second

// Kill sends SIGKILL and waits until it is gone with its whole group. Killing what has ended already is no error.
func (p *Process) Kill() error {
	e := p.current()
	if err := e.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("lab: kill %s: %w", p.cfg.Name, err)
	}
	select {
	case <-e.exited:
		return nil
	case <-time.After(2 * killWait): // the reaper gives the group one
		return fmt.Errorf("lab: %s, pid %d, is still there %v after SIGKILL", p.cfg.Name, e.cmd.Process.Pid, 2*killWait)
	}
}

// Stop sends SIGTERM and waits until it is gone; when ctx ends first, it is killed and the error says so.
func (p *Process) Stop(ctx context.Context) error {
	e := p.current()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		if err := e.signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("lab: stop %s: %w", p.cfg.Name, err)
		}
	}
	select {
	case <-e.exited:
		return nil
	case <-ctx.Done():
		err := fmt.Errorf("lab: %s did not end on SIGTERM and was killed: %w%s", p.cfg.Name, context.Cause(ctx), p.LogTail())
		return errors.Join(err, p.Kill())
	}
}

// Pause stops it where it is (SIGSTOP): the kernel still accepts its connections, nothing answers.
func (p *Process) Pause() error { return p.setPaused(true, syscall.SIGSTOP) }

// Resume lets a paused one go on (SIGCONT).
func (p *Process) Resume() error { return p.setPaused(false, syscall.SIGCONT) }

func (p *Process) setPaused(paused bool, sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.cur.signal(sig); err != nil {
		return fmt.Errorf("lab: %s to %s: %w", sig, p.cfg.Name, err)
	}
	p.paused = paused
	return nil
}

// LogTail is the end of its log, headed by the log's name, on lines of its own: made to be put at the end of an error.
func (p *Process) LogTail() string {
	b, err := os.ReadFile(p.cfg.LogPath)
	if err != nil {
		return "\n(no log: " + err.Error() + ")"
	}
	return fmt.Sprintf("\nend of %s:\n%s", p.cfg.LogPath, tail(b))
}

// ended is the error to give when it ended by itself, nil while it is up or when its end was asked for.
func (p *Process) ended() error {
	e := p.current()
	if !e.done() || e.wanted {
		return nil
	}
	return fmt.Errorf("lab: %s ended: %s%s", p.cfg.Name, e.state, p.LogTail())
}
