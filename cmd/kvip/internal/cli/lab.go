package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvip/kvip/loadtest/lab"
)

type labCommand struct {
	lab.Command `embed:""`
}

// Run keeps the parts up until Ctrl-C.
func (c *labCommand) Run(s streams) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	return c.Command.Run(ctx, s.out)
}
