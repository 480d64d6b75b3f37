package cli

import (
	"context"
	"fmt"

	"github.com/kvip/kvip/cmd/kvip/internal/config"
	"github.com/kvip/kvip/cmd/kvip/internal/demo"
	"github.com/kvip/kvip/cmd/kvip/internal/run"
)

type demoCommand struct {
	Brokers int    `help:"How many brokers the cluster has." default:"3"`
	Listen  string `help:"Where the VIP listens." default:"127.0.0.1:9092" placeholder:"HOST:PORT"`
	Admin   string `help:"Where the admin listener is." default:"127.0.0.1:9644" placeholder:"HOST:PORT"`
	Once    bool   `help:"Leave when the client has proven it, instead of waiting for Ctrl-C."`
	Verbose bool   `short:"v" help:"Show kvip's log."`
}

// Run shows the demo.
func (c *demoCommand) Run(s streams) error {
	if c.Brokers < 1 || c.Brokers > 100 {
		return &exitError{exitUsage, fmt.Errorf("--brokers %d: write 1 to 100", c.Brokers)}
	}
	logging := config.Log{Level: "warn", Format: "console"}
	if c.Verbose {
		logging.Level = "debug"
	}
	log, level, err := run.NewLogger(logging)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }()
	return demo.Run(context.Background(), demo.Options{
		Brokers: c.Brokers, Listen: c.Listen, Admin: c.Admin, Once: c.Once,
		Version: version, Out: s.out, Log: log, Level: level,
	})
}
