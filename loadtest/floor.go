package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kvip/kvip/loadtest/floor"
	"github.com/kvip/kvip/loadtest/report"
	"github.com/kvip/kvip/loadtest/scenario"
)

// Floor is `kvip loadtest floor`: a server that does nothing but write ready answers, to calibrate against.
type Floor struct {
	Listen  string `help:"Address to listen on; several floors may share one." default:"127.0.0.1:9192"`
	Answers string `help:"File of ready answers, as --save writes it." type:"existingfile"`
	Like    string `help:"Take the answers from this address first: those to what kvip loadtest asks with its own settings." placeholder:"HOST:PORT"`
	Save    string `help:"Keep the answers in a file." type:"path"`
	Loops   int    `help:"Event loops." default:"1"`
}

// Run serves until ctx ends.
func (f *Floor) Run(ctx context.Context, stdout, _ io.Writer) error {
	var answers []floor.Answer
	var err error
	switch {
	case (f.Like == "") == (f.Answers == ""):
		return Usage{errors.New("give --like HOST:PORT or --answers FILE")}
	case f.Like != "":
		answers, err = capture(ctx, f.Like, scenario.Defaults())
	default:
		answers, err = floor.ReadAnswers(f.Answers)
	}
	if err != nil {
		return err
	}
	if f.Save != "" {
		if err := report.WriteFile(f.Save, func(w io.Writer) error { return json.NewEncoder(w).Encode(answers) }); err != nil {
			return err
		}
	}
	s, err := floor.New(floor.Config{Listen: f.Listen, Loops: f.Loops, KeepAlive: time.Minute, Answers: answers})
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-s.Booted():
			fmt.Fprintf(stdout, "floor listens on %s with %d answers; Ctrl-C ends it\n", f.Listen, len(answers))
		case <-ctx.Done():
		}
	}()
	return s.Run(ctx)
}

// capture asks a server what the clients of a run will ask.
func capture(ctx context.Context, addr string, cfg scenario.Config) ([]floor.Answer, error) {
	var answers []floor.Answer
	err := cfg.Exchange(func(request []byte) ([]byte, error) {
		found, err := floor.Capture(ctx, addr, [][]byte{request})
		if err != nil {
			return nil, err
		}
		answers = append(answers, found...)
		return found[0].Response, nil
	})
	if err != nil {
		return nil, fmt.Errorf("answers of %s: %w", addr, err)
	}
	return answers, nil
}

// startFloor starts a floor with the target's answers as a process of its own, so that it takes nothing from the
// generator, and sets the plan's Floor. stop ends it.
func (p *plan) startFloor(ctx context.Context) (stop func(), err error) {
	answers, err := capture(ctx, p.Target, p.config)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kvip-loadtest-")
	if err != nil {
		return nil, err
	}
	undo := []func(){func() { _ = os.RemoveAll(dir) }}
	stop = func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	file := filepath.Join(dir, "answers.json")
	raw, err := json.Marshal(answers)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return nil, err
	}
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	c := p.again("floor", "--listen", listen, "--answers", file)
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // it is told to end, or says why it did
	}()
	undo = append(undo, func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = c.Process.Kill()
			<-ended
		}
	})
	for limit := time.Now().Add(10 * time.Second); ; {
		if c, err := new(net.Dialer).DialContext(ctx, "tcp", listen); err == nil {
			_ = c.Close()
			p.Floor = listen
			return stop, nil
		}
		select {
		case <-ended:
			return nil, fmt.Errorf("the floor ended: %s", said.String())
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("the floor on %s is not ready", listen)
		}
	}
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String(), nil
}

// again is this program's loadtest command with other arguments.
func (p *plan) again(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", append(append([]string{}, p.Self[1:]...), args...)...)
	c.Args[0] = p.Self[0] // what the program was called by may decide what it does
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}
