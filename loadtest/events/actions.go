package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// keep is how much of an action's output the report shows, in bytes.
const keep = 2 << 10

func (e *Event) do(ctx context.Context, p *processes) (detail string, err error) {
	switch {
	case e.Run != "":
		return run(ctx, e.Run)
	case e.Start != "":
		return e.Start, p.start(e.Name, e.Start)
	case e.HTTP != nil:
		return e.HTTP.call(ctx)
	case e.Kill != nil:
		return p.signal(ctx, e.Kill, syscall.SIGKILL)
	case e.Terminate != nil:
		return p.signal(ctx, e.Terminate, syscall.SIGTERM)
	case e.Continue != nil:
		return p.signal(ctx, e.Continue, syscall.SIGCONT)
	case e.Stop != nil:
		return p.stop(ctx, e.Stop)
	case e.ElectLeaders != "":
		return electLeaders(ctx, e.ElectLeaders)
	default:
		return reassignAll(ctx, e.ReassignAll)
	}
}

// command is a shell with a process group of its own, so that nothing of it stays.
func command(ctx context.Context, text string) *exec.Cmd {
	c := exec.CommandContext(ctx, "sh", "-c", text)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	return c
}

func run(ctx context.Context, text string) (string, error) {
	c := command(ctx, text)
	out, err := c.CombinedOutput()
	out = bytes.TrimSpace(out)
	if len(out) > keep {
		out = append(out[:keep], "..."...)
	}
	if len(out) == 0 {
		return text, err
	}
	return text + ": " + string(out), err
}

func (h *HTTP) call(ctx context.Context) (string, error) {
	method := h.Method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, h.URL, strings.NewReader(h.Body))
	if err != nil {
		return "", err
	}
	for name, value := range h.Header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, keep)) // the status counts; the body is for the report
	detail := fmt.Sprintf("%s %s: %s %s", method, h.URL, resp.Status, bytes.TrimSpace(body))
	good := resp.StatusCode >= 200 && resp.StatusCode < 300
	if h.Status != 0 {
		good = resp.StatusCode == h.Status
	}
	if !good {
		return detail, fmt.Errorf("status %s", resp.Status)
	}
	return detail, nil
}

// processes are those that events started.
type processes struct {
	mu      sync.Mutex
	started map[string]*process
}

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *processes) start(name, text string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started[name] != nil {
		return fmt.Errorf("%q has been started already", name)
	}
	c := command(context.Background(), text) // ended by end
	if err := c.Start(); err != nil {
		return err
	}
	started := &process{c, make(chan struct{})}
	p.started[name] = started
	go func() {
		defer close(started.done)
		_ = c.Wait() // how it ended is no business of the run's
	}()
	return nil
}

// end ends what was started: politely, then not.
func (p *processes) end(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.started {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, s := range p.started {
		select {
		case <-s.done:
		case <-ctx.Done():
		}
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		<-s.done
	}
}

// find returns what to signal: a process, or the group of one that an event started.
func (p *processes) find(t *Process) (int, error) {
	switch {
	case t.Started != "":
		p.mu.Lock()
		defer p.mu.Unlock()
		if s := p.started[t.Started]; s != nil {
			return -s.cmd.Process.Pid, nil
		}
		return 0, fmt.Errorf("no event has started %q yet", t.Started)
	case t.PIDFile != "":
		raw, err := os.ReadFile(t.PIDFile)
		if err != nil {
			return 0, err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil || pid <= 1 {
			return 0, fmt.Errorf("%s holds no process id", t.PIDFile)
		}
		return pid, nil
	}
	return t.PID, nil
}

func (p *processes) signal(_ context.Context, t *Process, s syscall.Signal) (string, error) {
	pid, err := p.find(t)
	if err != nil {
		return "", err
	}
	detail := fmt.Sprintf("%s to process %d", s, pid)
	return detail, syscall.Kill(pid, s)
}

// stop freezes a process, and lets it go on after its time or when the run ends early.
func (p *processes) stop(ctx context.Context, t *Process) (string, error) {
	detail, err := p.signal(ctx, t, syscall.SIGSTOP)
	if err != nil || t.For == 0 {
		return detail, err
	}
	whole := sleep(ctx, t.For)
	_, err = p.signal(ctx, t, syscall.SIGCONT)
	if err == nil && !whole {
		err = errors.New("the run ended before the time was over")
	}
	return fmt.Sprintf("%s for %s", detail, t.For), err
}
