package cli

import (
	"context"
	"fmt"

	"github.com/kvip/kvip/cmd/kvip/internal/config"
	"github.com/kvip/kvip/cmd/kvip/internal/run"
)

type serveCommand struct {
	Config string `short:"c" required:"" help:"The configuration, kvip.yaml." placeholder:"FILE"`
}

// Run serves until a signal; faults in the configuration are shown as check shows them.
func (c *serveCommand) Run(s streams) error {
	cfg, faults := config.Load(c.Config)
	fmt.Fprint(s.err, faults.Error())
	if cfg == nil {
		return &exitError{exitUsage, fmt.Errorf("%s: %s: not started", c.Config, count(faults.Errors(), "error"))}
	}
	log, level, err := run.NewLogger(cfg.Log)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	// Standard error cannot be synced everywhere, and nothing waits to be written there.
	defer func() { _ = log.Sync() }()
	return run.Serve(context.Background(), cfg, run.Options{
		Version: version,
		Log:     log,
		Level:   level,
		Reload:  func() (*config.Config, config.Faults) { return config.Load(c.Config) },
	})
}
