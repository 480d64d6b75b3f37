// Package cli is the kvip command: one file a sub-command.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

// Exit codes.
const (
	exitGood        = 0
	exitFailed      = 1
	exitUsage       = 2 // wrong usage, or a bad configuration
	exitUnreachable = 3 // kvip status only
	exitInterrupted = 130
)

// commands is what kong reads the command line into.
type commands struct {
	Demo     demoCommand     `cmd:"" help:"Run a Kafka cluster in this process with a VIP in front, and a client through it."`
	Serve    serveCommand    `cmd:"" help:"Run the gateway."`
	Check    checkCommand    `cmd:"" help:"Read a configuration as serve would, and show everything that is wrong with it."`
	Status   statusCommand   `cmd:"" help:"Show whether a running kvip is healthy, and if not, why."`
	Brokers  brokersCommand  `cmd:"" help:"Show the brokers of a running kvip, and what it thinks of each."`
	Explain  explainCommand  `cmd:"" help:"Show which broker a client gets, why, and who is skipped for what."`
	Pool     poolCommand     `cmd:"" help:"Change who is in a pool, and with what share, in Consul."`
	Probe    probeCommand    `cmd:"" help:"Run the checks of a pool's health probe against one broker, step by step."`
	Loadtest loadtestCommand `cmd:"" help:"Load a bootstrap address with virtual clients, and check what they are told."`
	Lab      labCommand      `cmd:"" help:"Run real Kafka, Consul and faulty peers on this machine until Ctrl-C, for tests and trials."`
	Version  versionCommand  `cmd:"" help:"Show the version, and those of what it is built from."`
}

// streams are where commands write.
type streams struct{ out, err io.Writer }

// exitError is an error with the exit code that it means.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errShown ends a command whose output has said everything.
var errShown = errors.New("")

// Main runs the command line args (without the program's name) and returns the exit code.
func Main(args []string) int {
	s := streams{os.Stdout, os.Stderr}
	parser, err := kong.New(&commands{},
		kong.Name("kvip"),
		kong.Description("The bootstrap gateway for Apache Kafka: one address for clients, their brokers behind it."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(s.out, s.err),
	)
	if err != nil {
		fmt.Fprintln(s.err, "kvip:", err)
		return exitFailed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(s.err, "kvip: %v\ntry: kvip --help\n", err)
		return exitUsage
	}
	err = ctx.Run(s)
	if err == nil {
		return exitGood
	}
	if !errors.Is(err, errShown) {
		fmt.Fprintln(s.err, "kvip:", err)
	}
	var ee *exitError
	if errors.As(err, &ee) {
		return ee.code
	}
	return exitFailed
}
