package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Modes of a job.
const (
	Once       = "once"       // produce Count records, consume them, compare
	Steady     = "steady"     // produce a record each 50 ms and consume, for Seconds, whatever happens to the brokers
	Bootstraps = "bootstraps" // start a fresh client each second for Seconds; each only lists the topics
)

// Options says which job [Client.Run] has the client do.
type Options struct {
	Bootstrap string // the one address, host:port
	Topic     string // created, or found; not used by Bootstraps
	Group     string // consumer group; empty for one of its own
	Mode      string // Once when empty
	Count     int    // Once: records, 20 when 0
	Seconds   int    // Steady and Bootstraps, 30 when 0
}

// Result is what a client said about its job.
type Result struct {
	OK     bool
	Reason string // why not OK

	Produced int // acknowledged records
	Consumed int // different records that came back as they were sent
	Errors   int // Steady: failed sends and exceptions that the application saw; they do not make it fail

	Started, Failed int // Bootstraps: fresh clients, and those without a topic list within 10 s

	Took   time.Duration
	Output string // everything that the program wrote
}

// grace is what a program gets beyond its own limit: it reports its own timeout, so this one means that it hangs.
const grace = 15 * time.Second

// Run installs the client if need be and has it do a job. A job that fails is a Result that is not OK; an error means
// that there is no verdict: it could not be installed or started, ctx ended, or it died or hung without a word.
func (c Client) Run(ctx context.Context, o Options) (Result, error) {
	command, env, err := c.program.install(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("install client %s: %w", c.Name, err)
	}
	args, limit := o.flags()
	ctx, cancel := context.WithTimeoutCause(ctx, limit+grace, fmt.Errorf("no verdict after %v", limit+grace))
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], args...)...)
	cmd.Env = append(os.Environ(), env...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// A group of its own, so that what kcat.sh started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	failure := cmd.Run()
	if ctx.Err() != nil {
		failure = context.Cause(ctx)
	}
	result, err := verdict(output.String(), failure)
	result.Took = time.Since(begin)
	if err != nil {
		return result, fmt.Errorf("client %s: %w\noutput:\n%s", c.Name, err, output.String())
	}
	return result, nil
}

// flags is the command line for o, and the limit that the program keeps with it by itself.
func (o Options) flags() ([]string, time.Duration) {
	if o.Mode == "" {
		o.Mode = Once
	}
	if o.Count == 0 {
		o.Count = 20
	}
	if o.Seconds == 0 {
		o.Seconds = 30
	}
	args := []string{"--mode", o.Mode, "--bootstrap", o.Bootstrap, "--count", strconv.Itoa(o.Count), "--seconds", strconv.Itoa(o.Seconds)}
	if o.Topic != "" {
		args = append(args, "--topic", o.Topic)
	}
	if o.Group != "" {
		args = append(args, "--group", o.Group)
	}
	if o.Mode == Once {
		return args, time.Minute
	}
	return args, time.Duration(o.Seconds)*time.Second + 90*time.Second
}

// verdict reads a program's last word, a line "OK name=number ..." or "FAIL reason", which must agree with how it ended.
// Lines that a library logs while the program ends may follow it.
func verdict(output string, failure error) (Result, error) {
	result := Result{Output: output}
	var last, word, rest string
	for line := range strings.Lines(output) {
		first, more, _ := strings.Cut(strings.TrimSpace(line), " ")
		if first == "OK" || first == "FAIL" {
			last, word, rest = strings.TrimSpace(line), first, more
		}
	}
	var exit *exec.ExitError
	switch {
	case word == "OK" && failure == nil:
	case word == "FAIL" && errors.As(failure, &exit):
		result.Reason = rest
		return result, nil
	case failure != nil:
		return result, fmt.Errorf("ended without a verdict: %w", failure)
	default:
		return result, fmt.Errorf("exit status 0 does not go with verdict %q", last)
	}
	fields := map[string]*int{
		"produced": &result.Produced, "consumed": &result.Consumed, "errors": &result.Errors,
		"started": &result.Started, "failed": &result.Failed,
	}
	for _, figure := range strings.Fields(rest) {
		name, number, _ := strings.Cut(figure, "=")
		n, err := strconv.Atoi(number)
		field, known := fields[name]
		if err != nil || !known {
			return result, fmt.Errorf("verdict %q: cannot read %q", last, figure)
		}
		*field = n
	}
	result.OK = true
	return result, nil
}
