package loadtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/events"
	"github.com/kvip/kvip/loadtest/report"
	"github.com/kvip/kvip/loadtest/scenario"
)

// message is one line from a process of several to the one that started it. In the other direction goes the moment at
// which a turn begins, in Unix nanoseconds, one per line.
type message struct {
	Ready    bool               `json:"ready,omitempty"`    // for a turn
	Target   string             `json:"target,omitempty"`   // of the progress
	Progress *scenario.Progress `json:"progress,omitempty"` // of this process's part
	Run      *report.Run        `json:"run,omitempty"`      // the last line
	Error    string             `json:"error,omitempty"`    // instead
}

// part drives one process's part of a load.
func (p *plan) part(ctx context.Context, from io.Reader, to io.Writer) error {
	out := json.NewEncoder(to)
	p.show = func(target string, progress scenario.Progress) {
		_ = out.Encode(message{Target: target, Progress: &progress}) // a reader that is gone is noticed at the next turn
	}
	in := bufio.NewReader(from)
	run, err := p.drive(ctx, func(context.Context) (time.Time, error) {
		if err := out.Encode(message{Ready: true}); err != nil {
			return time.Time{}, err
		}
		var nanos int64
		if _, err := fmt.Fscanln(in, &nanos); err != nil {
			return time.Time{}, fmt.Errorf("the process that started this one is gone: %w", err)
		}
		return time.Unix(0, nanos), nil
	}, nil)
	if err != nil {
		return out.Encode(message{Error: err.Error()})
	}
	return out.Encode(message{Run: run})
}

// child is one process of several.
type child struct {
	cmd      *exec.Cmd
	orders   io.WriteCloser
	said     strings.Builder // on stderr
	run      *report.Run
	progress scenario.Progress
}

// news is what a child said; err is set once, at its end.
type news struct {
	from *child
	message
	err   error
	ended bool
}

// ahead is how far in the future a turn's begin is announced, so that every process knows it in time.
const ahead = 200 * time.Millisecond

// patienceCut is how long interrupted processes may take to say what they have found.
const patienceCut = 5 * time.Second

// together drives the load from several processes and merges what they found.
func (p *plan) together(ctx context.Context, todo *events.File) (_ *report.Run, err error) {
	ctx, cancel := context.WithCancel(ctx)
	said := make(chan news)
	var children []*child
	running := 0
	defer func() {
		cancel()
		for _, c := range children {
			_ = c.orders.Close()
			_ = c.cmd.Process.Kill() // those that have ended do not mind
		}
		for running > 0 {
			if n := <-said; n.ended {
				running--
			}
		}
	}()
	for i := range p.Processes {
		c, err := p.startPart(i, said)
		if err != nil {
			return nil, err
		}
		children = append(children, c)
		running++
	}
	calibrating := p.Floor != ""
	var happened chan []events.Done
	ready, finished := 0, 0
	interrupted, overdue := ctx.Done(), (<-chan time.Time)(nil)
	for finished < len(children) {
		var n news
		select {
		case n = <-said:
		case <-interrupted: // everybody says what was found until now
			interrupted, overdue = nil, time.After(patienceCut)
			for _, c := range children {
				_ = c.cmd.Process.Signal(os.Interrupt) // one that has ended has said what it found
			}
			continue
		case <-overdue:
			return nil, context.Cause(ctx)
		}
		switch {
		case n.ended:
			running--
			if n.from.run == nil {
				return nil, fmt.Errorf("a generating process ended: %w %s", errors.Join(n.err, errNoResult), n.from.said.String())
			}
		case n.Error != "":
			return nil, errors.New(n.Error)
		case n.Run != nil:
			n.from.run = n.Run
			finished++
		case n.Progress != nil:
			p.sum(children, n)
		case n.Ready:
			if ready++; ready < len(children) {
				continue
			}
			ready = 0
			start := time.Now().Add(ahead)
			for _, c := range children {
				if _, err := fmt.Fprintln(c.orders, start.UnixNano()); err != nil {
					return nil, fmt.Errorf("a generating process is gone: %w", err)
				}
			}
			if todo != nil && happened == nil && !calibrating {
				happened = make(chan []events.Done, 1)
				go func() { happened <- todo.Run(ctx, start.Add(p.config.Warmup)) }()
			}
			calibrating = false
		}
	}
	runs := make([]*report.Run, len(children))
	for i, c := range children {
		runs[i] = c.run
	}
	run, err := report.Merge(runs)
	if happened != nil {
		cancel()
		if done := reported(<-happened); err == nil {
			run.Events = done
		}
	}
	return run, err
}

var errNoResult = errors.New("without a result;")

// startPart starts a process for one part. What it says goes to said until it has ended.
func (p *plan) startPart(i int, said chan<- news) (*child, error) {
	args := append([]string{}, p.Args...)
	args = append(args, "--part", strconv.Itoa(i), "--processes", strconv.Itoa(p.Processes))
	if p.Floor != "" {
		args = append(args, "--floor", p.Floor)
	}
	c := &child{cmd: p.again(args...)}
	c.cmd.Stderr = &c.said
	var err error
	if c.orders, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a generating process: %w", err)
	}
	go func() {
		lines := json.NewDecoder(out)
		var fault error
		for fault == nil {
			n := news{from: c}
			if fault = lines.Decode(&n.message); fault == nil {
				said <- n
			}
		}
		if errors.Is(fault, io.EOF) {
			fault = nil
		}
		_, _ = io.Copy(io.Discard, out)
		said <- news{from: c, err: errors.Join(fault, c.cmd.Wait()), ended: true}
	}()
	return c, nil
}

// sum shows how far all processes together are.
func (p *plan) sum(children []*child, n news) {
	n.from.progress = *n.Progress
	all := scenario.Progress{Since: n.Progress.Since}
	for _, c := range children {
		if c.progress.Since != all.Since {
			return // not everybody has told
		}
		all.Answered += c.progress.Answered
		all.Failed += c.progress.Failed
		all.Local += c.progress.Local
		all.Open += c.progress.Open
		all.P99 = max(all.P99, c.progress.P99)
	}
	p.show(n.Target, all)
}
