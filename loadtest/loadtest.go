// Package loadtest says whether a bootstrap path holds: it drives virtual Kafka clients against any address that speaks
// the protocol and checks what they are told. It imports no other package of the project: a fault in the project's own
// codec must not hide itself.
package loadtest

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/scenario"
)

// Command is `kvip loadtest`: flags for kong, and Run.
type Command struct {
	Target    string `help:"Address to load: anything that speaks Kafka." required:"" placeholder:"HOST:PORT"`
	Scenario  string `help:"What clients do: kept (look up over kept connections) or storm (connect, ApiVersions, Metadata, close)." default:"kept" enum:"kept,storm"`
	YesReally bool   `help:"Allow a target that is not on this machine's loopback."`

	Clients  int           `help:"Virtual clients." default:"64"`
	Loops    int           `help:"Threads that generate load." default:"1"`
	Warmup   time.Duration `help:"Load before the measurement begins." default:"1s"`
	Duration time.Duration `help:"Length of the measurement." default:"10s"`
	Timeout  time.Duration `help:"Time that one operation may take." default:"5s"`

	Topic       []string `help:"Topics to look up; none: all topics."`
	BrokersOnly bool     `help:"Look up no topic, only brokers."`
	ClientID    string   `help:"Client id that requests carry." default:"kvip-loadtest"`
	APIVersions int16    `name:"apiversions-version" help:"Version of the ApiVersions request, 0-5." default:"4"`
	Metadata    int16    `name:"metadata-version" help:"Version of the Metadata request, 0-13." default:"12"`
	ClusterID   string   `help:"Cluster id that every answer must name; empty: a connection's first answer decides."`
}

// Run drives the load and prints what came of it. Its error says what was wrong with the settings or the run, or that
// operations failed.
func (c *Command) Run(ctx context.Context, stdout io.Writer) error {
	cfg, err := c.config(ctx)
	if err != nil {
		return err
	}
	result, err := scenario.Run(ctx, cfg)
	if err != nil {
		return err
	}
	printResult(stdout, c, result)
	if n := result.TargetFailures() + result.LocalFailures(); n > 0 {
		return fmt.Errorf("%d of %d operations failed", n, result.Started)
	}
	return nil
}

func (c *Command) config(ctx context.Context) (scenario.Config, error) {
	cfg := scenario.Defaults()
	cfg.Target, cfg.Scenario, cfg.Clients, cfg.Loops = c.Target, c.Scenario, c.Clients, c.Loops
	cfg.Warmup, cfg.Duration, cfg.Timeout = c.Warmup, c.Duration, c.Timeout
	cfg.ClientID, cfg.APIVersionsVersion, cfg.MetadataVersion, cfg.ClusterID = c.ClientID, c.APIVersions, c.Metadata, c.ClusterID
	cfg.Lookup = kafka.Lookup{All: len(c.Topic) == 0 && !c.BrokersOnly, Topics: c.Topic}
	if c.BrokersOnly && (len(c.Topic) > 0 || c.Metadata == 0) {
		return cfg, fmt.Errorf("--brokers-only goes with no --topic, and with a Metadata version above 0, where an empty list means all topics")
	}
	target, err := engine.Resolve(ctx, c.Target)
	if err != nil {
		return cfg, err
	}
	if !target.Addr.Addr().IsLoopback() && !c.YesReally {
		return cfg, fmt.Errorf("%s is not on this machine's loopback; --yes-really loads it all the same", c.Target)
	}
	return cfg, cfg.Validate()
}
