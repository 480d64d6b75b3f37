package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/kvip/kvip/loadtest"
)

type loadtestCommand struct {
	Drive   driveCommand   `cmd:"" default:"withargs" help:"Drive load (the default)."`
	Floor   floorCommand   `cmd:"" help:"Serve ready answers and do nothing else: what generator and machine can do at most."`
	Merge   mergeCommand   `cmd:"" help:"Add up results of generators that ran together."`
	Compare compareCommand `cmd:"" help:"Show two saved results side by side."`
}

// Help has the flags that are needed most: all of them belong to the default command.
func (c *loadtestCommand) Help() string { return loadtest.Overview + loadtest.Scenarios() }

type (
	driveCommand struct {
		loadtest.Drive `embed:""`
	}
	floorCommand struct {
		loadtest.Floor `embed:""`
	}
	mergeCommand struct {
		loadtest.Merge `embed:""`
	}
	compareCommand struct {
		loadtest.Compare `embed:""`
	}
)

// Run loads the target until the measurement is over or Ctrl-C.
func (c *driveCommand) Run(s streams) error {
	at := slices.Index(os.Args, "loadtest")
	if at >= 0 {
		c.Self, c.Args = append([]string{os.Args[0]}, os.Args[1:at+1]...), os.Args[at+1:]
	}
	c.Version = version
	return interruptible(s, c.Drive.Run)
}

func (c *floorCommand) Run(s streams) error   { return interruptible(s, c.Floor.Run) }
func (c *mergeCommand) Run(s streams) error   { return interruptible(s, c.Merge.Run) }
func (c *compareCommand) Run(s streams) error { return interruptible(s, c.Compare.Run) }

// interruptible runs a command until a signal. One that says that the signal cost something ends as shells expect.
func interruptible(s streams, run func(context.Context, io.Writer, io.Writer) error) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	err := run(ctx, s.out, s.err)
	var usage loadtest.Usage
	switch {
	case errors.As(err, &usage):
		return &exitError{exitUsage, err}
	case err != nil && ctx.Err() != nil:
		return &exitError{exitInterrupted, err}
	}
	return err
}
