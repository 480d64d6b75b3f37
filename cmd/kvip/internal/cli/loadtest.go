package cli

import (
	"context"
	"os"
	"os/signal"

	"github.com/kvip/kvip/loadtest"
)

type loadtestCommand struct {
	loadtest.Command `embed:""`
}

// Run loads the target until the measurement is over or Ctrl-C.
func (c *loadtestCommand) Run(s streams) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	return c.Command.Run(ctx, s.out)
}
