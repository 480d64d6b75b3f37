// Package events is what happens to the target during a load test: commands, HTTP calls and a set of faults, at times that
// a file says.
package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/goccy/go-yaml"
)

// File is an events file.
type File struct {
	Events []Event `yaml:"events"`
}

// Event is one thing to do. Exactly one action is set.
type Event struct {
	At   time.Duration `yaml:"at"`   // since the measurement's begin
	Name string        `yaml:"name"` // in the report; empty: made of the action
	// Within is how long the action may take; 0: 30 s.
	Within time.Duration `yaml:"within"`

	Run   string `yaml:"run"`   // a command for sh, waited for
	Start string `yaml:"start"` // a command for sh that goes on until the run's end, or until it is killed: scaling up
	HTTP  *HTTP  `yaml:"http"`
	// Kill and Terminate end processes: SIGKILL, SIGTERM. Stop freezes them (SIGSTOP) for Process.For, or for good.
	Kill      *Process `yaml:"kill"`
	Terminate *Process `yaml:"terminate"`
	Stop      *Process `yaml:"stop"`
	Continue  *Process `yaml:"continue"`
	// ElectLeaders makes every partition's preferred replica its leader; ReassignAll moves every replica to the next broker.
	// Both take the address of any broker of the cluster.
	ElectLeaders string `yaml:"elect_leaders"`
	ReassignAll  string `yaml:"reassign_all"`
}

// HTTP is a call; any status from 200 to 299 is good, or the one expected.
type HTTP struct {
	Method string            `yaml:"method"` // empty: GET
	URL    string            `yaml:"url"`
	Body   string            `yaml:"body"`
	Header map[string]string `yaml:"header"`
	Status int               `yaml:"status"`
}

// Process names a process: one of the three.
type Process struct {
	PID     int           `yaml:"pid"`
	PIDFile string        `yaml:"pid_file"`
	Started string        `yaml:"started"` // the name of an event with start
	For     time.Duration `yaml:"for"`     // stop: continue it after that time
}

// Done is what became of an event.
type Done struct {
	Event  *Event
	At     time.Duration // since the measurement's begin
	Took   time.Duration
	Detail string
	Err    error
}

// defaultWithin bounds an action.
const defaultWithin = 30 * time.Second

// Load reads an events file. Its error shows the line.
func Load(path string) (*File, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	f, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("events %s: %w", path, err)
	}
	return f, nil
}

// Parse reads an events file's bytes.
func Parse(raw []byte) (*File, error) {
	f := &File{}
	if err := yaml.NewDecoder(bytes.NewReader(raw), yaml.Strict()).Decode(f); err != nil {
		return nil, errors.New(yaml.FormatError(err, false, true))
	}
	if len(f.Events) == 0 {
		return nil, errors.New("no event in it: write events: [{at: 5s, run: 'kill -9 123'}]")
	}
	var faults []error
	for i := range f.Events {
		if err := f.Events[i].validate(); err != nil {
			faults = append(faults, fmt.Errorf("event %d: %w", i+1, err))
		}
	}
	return f, errors.Join(faults...)
}

func (e *Event) validate() error {
	var found []string
	for name, set := range map[string]bool{
		"run": e.Run != "", "start": e.Start != "", "http": e.HTTP != nil, "kill": e.Kill != nil, "terminate": e.Terminate != nil,
		"stop": e.Stop != nil, "continue": e.Continue != nil, "elect_leaders": e.ElectLeaders != "", "reassign_all": e.ReassignAll != "",
	} {
		if set {
			found = append(found, name)
		}
	}
	switch {
	case len(found) != 1:
		return fmt.Errorf("%d actions: exactly one of run, start, http, kill, terminate, stop, continue, elect_leaders, reassign_all", len(found))
	case e.At < 0 || e.Within < 0:
		return fmt.Errorf("at %s, within %s: neither may be negative", e.At, e.Within)
	case e.Start != "" && e.Name == "":
		return errors.New("start needs a name, by which kill and terminate find it")
	case e.HTTP != nil && e.HTTP.URL == "":
		return errors.New("http needs a url")
	}
	for _, p := range []*Process{e.Kill, e.Terminate, e.Stop, e.Continue} {
		if p == nil {
			continue
		}
		named := 0
		for _, set := range []bool{p.PID != 0, p.PIDFile != "", p.Started != ""} {
			if set {
				named++
			}
		}
		if named != 1 || p.PID < 0 || p.PID == 1 {
			return errors.New("name the process by exactly one of pid (above 1), pid_file, started")
		}
	}
	if e.Within == 0 {
		e.Within = defaultWithin
	}
	if e.Stop != nil {
		e.Within += e.Stop.For
	}
	if e.Name == "" {
		e.Name = found[0]
	}
	return nil
}

// Run does the events at their times, each for itself, and returns what became of them once all are over or ctx has ended.
// Processes that it started are gone by then.
func (f *File) Run(ctx context.Context, begin time.Time) []Done {
	var (
		mu   sync.Mutex
		done []Done
		wg   sync.WaitGroup
	)
	p := &processes{started: map[string]*process{}}
	for i := range f.Events {
		e := &f.Events[i]
		wg.Go(func() {
			if !sleep(ctx, time.Until(begin.Add(e.At))) {
				return
			}
			at := time.Now()
			limited, cancel := context.WithTimeoutCause(ctx, e.Within, fmt.Errorf("not done within %s", e.Within))
			defer cancel()
			detail, err := e.do(limited, p)
			if err != nil && limited.Err() != nil {
				err = fmt.Errorf("%w: %w", context.Cause(limited), err)
			}
			mu.Lock()
			defer mu.Unlock()
			done = append(done, Done{Event: e, At: at.Sub(begin), Took: time.Since(at), Detail: detail, Err: err})
		})
	}
	wg.Wait()
	p.end(ctx)
	http.DefaultClient.CloseIdleConnections()
	return done
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
