package cli

import (
	"fmt"

	"github.com/goccy/go-yaml"

	"github.com/kvip/kvip/cmd/kvip/internal/config"
)

type checkCommand struct {
	File      string `arg:"" help:"The configuration, kvip.yaml." placeholder:"FILE"`
	Effective bool   `help:"Print the whole configuration as it would be in force, defaults included, without secrets."`
}

// Run shows all faults; the exit code says whether serve would start.
func (c *checkCommand) Run(s streams) error {
	cfg, faults := config.Load(c.File)
	report := s.out
	if c.Effective {
		report = s.err
	}
	fmt.Fprint(report, faults.Error())
	if cfg == nil {
		fmt.Fprintf(report, "%s: %s, %s\n", c.File, count(faults.Errors(), "error"), count(len(faults)-faults.Errors(), "warning"))
		return &exitError{exitUsage, errShown}
	}
	if c.Effective {
		text, err := yaml.Marshal(cfg.Redacted())
		if err != nil {
			return err
		}
		_, err = s.out.Write(text)
		return err
	}
	fmt.Fprintf(report, "%s: good: %s, %s, %s\n", c.File, count(len(cfg.Pools), "pool"), count(len(cfg.VIPs), "vip"), count(len(faults), "warning"))
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
