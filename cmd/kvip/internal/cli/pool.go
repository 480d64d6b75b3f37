package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvip/kvip/cmd/kvip/internal/config"
	"github.com/kvip/kvip/discovery/provider"
)

type poolCommand struct {
	List    poolListCommand    `cmd:"" help:"Show a pool's brokers as Consul and operators have them."`
	Add     poolAddCommand     `cmd:"" help:"Register a broker that no agent registers, or take a removed one back."`
	Remove  poolRemoveCommand  `cmd:"" help:"Take a broker out of the pool at once, whatever its agent says."`
	Drain   poolDrainCommand   `cmd:"" help:"Send a broker no new requests; it stays in the pool."`
	Undrain poolUndrainCommand `cmd:"" help:"End a drain."`
	Weight  poolWeightCommand  `cmd:"" help:"Give a broker another share, or back the registered one."`
}

// poolTarget says which pool, and where it is registered.
type poolTarget struct {
	Pool string `arg:"" help:"The pool's name in kvip.yaml." placeholder:"POOL"`

	Config     string        `short:"c" help:"The configuration with the pool and Consul's address." default:"/etc/kvip/kvip.yaml" env:"KVIP_CONFIG" placeholder:"FILE"`
	Service    string        `help:"The Consul service of the brokers; with it, no configuration is read." placeholder:"NAME"`
	Consul     string        `help:"Consul's address, instead of the configuration's." placeholder:"HOST:PORT"`
	Datacenter string        `help:"Consul's datacenter, instead of the configuration's." placeholder:"NAME"`
	TokenFile  string        `help:"A file with an ACL token that may write; else $$CONSUL_HTTP_TOKEN, else the configuration's." placeholder:"FILE"`
	JSON       bool          `name:"json" help:"Print the result as JSON."`
	Timeout    time.Duration `help:"How long to wait for Consul." default:"10s"`
}

// open finds the pool in the configuration and makes its operator's side.
func (t poolTarget) open(s streams) (*provider.ConsulPool, error) {
	settings, service := config.Defaults().Consul, provider.ConsulConfig{Service: t.Service}
	if t.Service == "" {
		if t.Config == "" { // KVIP_CONFIG is set, to nothing
			return nil, &exitError{exitUsage, errors.New("no configuration: name one with -c or KVIP_CONFIG, or the brokers' service with --service")}
		}
		cfg, faults := config.Load(t.Config)
		if cfg == nil {
			fmt.Fprint(s.err, faults.Error())
			return nil, &exitError{exitUsage, fmt.Errorf("%s: %s: name a good configuration with -c, or the brokers' service with --service", t.Config, count(faults.Errors(), "error"))}
		}
		i := slices.IndexFunc(cfg.Pools, func(p config.Pool) bool { return p.Name == t.Pool })
		if i < 0 {
			var known []string
			for _, p := range cfg.Pools {
				known = append(known, p.Name)
			}
			return nil, &exitError{exitUsage, fmt.Errorf("%s has no pool %q; it has %s", t.Config, t.Pool, strings.Join(known, ", "))}
		}
		found := cfg.Pools[i].Discovery.Consul()
		if found == nil {
			return nil, &exitError{exitUsage, fmt.Errorf("pool %s is not registered in Consul: change its brokers where %s is kept", t.Pool, cfg.Pools[i].Discovery[0].Type)}
		}
		settings, service = cfg.Consul, *found
	}
	settings.Address = cmp.Or(t.Consul, settings.Address)
	settings.Datacenter = cmp.Or(t.Datacenter, settings.Datacenter)
	switch {
	case t.TokenFile != "":
		settings.TokenFile = t.TokenFile
	case os.Getenv("CONSUL_HTTP_TOKEN") != "" || os.Getenv("CONSUL_HTTP_TOKEN_FILE") != "":
		settings.TokenFile = "" // Consul's client reads those itself
	}
	pool, err := provider.OpenConsulPool(t.Pool, settings, service)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return pool, nil
}

func (t poolTarget) context() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeoutCause(ctx, t.Timeout, fmt.Errorf("Consul does not answer within %v", t.Timeout))
	return ctx, func() { cancel(); stop() }
}

type poolListCommand struct {
	poolTarget `embed:""`
	Audit      bool `help:"Show who changed what, the newest first."`
}

// Run prints the pool.
func (c *poolListCommand) Run(s streams) error {
	pool, err := c.open(s)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := c.context()
	defer cancel()
	state, err := pool.State(ctx)
	if err != nil {
		return because(ctx, err)
	}
	if c.JSON {
		if !c.Audit {
			state.Audit = nil
		}
		return writeJSON(s.out, state)
	}
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	if c.Audit {
		fmt.Fprintln(w, "WHEN\tWHO\tWHAT\tBROKER\tBEFORE\tAFTER")
		for _, a := range state.Audit {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", a.At.Format(time.RFC3339), a.By, a.Action, a.Broker, a.Before, a.After)
		}
		return w.Flush()
	}
	fmt.Fprintln(w, "BROKER\tREGISTERED BY\tHEALTH\tWEIGHT\tRACK\tNODE\tORDER\tID")
	for _, m := range state.Members {
		node, order, health := "-", "-", cmp.Or(m.Health, "-")
		if m.NodeID >= 0 {
			node = fmt.Sprint(m.NodeID)
		}
		if m.Order != "" {
			order = fmt.Sprintf("%s (%s, %s)", m.Order, m.By, m.At.Format(time.RFC3339))
		}
		if m.Skipped != "" && m.Skipped != health {
			health += ", not taken: " + m.Skipped
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", m.Broker, cmp.Or(m.Registered, "nobody"), health, m.Weight, cmp.Or(m.Rack, "-"), node, order, cmp.Or(m.ID, "-"))
	}
	return w.Flush()
}

// poolChange is what all changes take.
type poolChange struct {
	poolTarget `embed:""`
	Broker     string `arg:"" help:"The broker as registered, host:port." placeholder:"HOST:PORT"`
	DryRun     bool   `help:"Only say what would be done."`
	Force      bool   `help:"Also for a broker that is not registered, and for the last one."`
	By         string `help:"Who does it, for the audit trail." placeholder:"NAME"`
}

// do does one change and prints it.
func (c poolChange) do(s streams, change provider.PoolChange) error {
	pool, err := c.open(s)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := c.context()
	defer cancel()
	change.Broker, change.DryRun, change.Force, change.By = c.Broker, c.DryRun, c.Force, cmp.Or(c.By, operator())
	res, err := pool.Change(ctx, change)
	if err != nil {
		if usage := (provider.UsageError{}); errors.As(err, &usage) {
			return &exitError{exitUsage, err}
		}
		return because(ctx, err)
	}
	if c.JSON {
		return writeJSON(s.out, res)
	}
	switch {
	case !res.Changed:
		fmt.Fprintf(s.out, "%s of pool %s is as wanted: %s\n", res.Broker, res.Pool, res.Before)
	case res.DryRun:
		fmt.Fprintf(s.out, "would change %s of pool %s: %s -> %s\n", res.Broker, res.Pool, res.Before, res.After)
	default:
		fmt.Fprintf(s.out, "%s of pool %s: %s -> %s\n", res.Broker, res.Pool, res.Before, res.After)
	}
	for _, n := range res.Notes {
		fmt.Fprintln(s.out, "note: "+n)
	}
	return nil
}

type poolAddCommand struct {
	poolChange `embed:""`
	Rack       string   `help:"The broker's rack."`
	NodeID     string   `name:"node-id" help:"The broker's node id, which the probe then holds it to." placeholder:"ID"`
	Weight     int      `help:"Its share relative to the others." default:"1"`
	Tags       []string `help:"Tags besides those that the pool asks for." placeholder:"TAG"`
}

// Run registers a broker.
func (c *poolAddCommand) Run(s streams) error {
	return c.do(s, provider.PoolChange{Action: "add", Rack: c.Rack, NodeID: c.NodeID, Weight: c.Weight, Tags: c.Tags})
}

type poolRemoveCommand struct {
	poolChange `embed:""`
}

// Run removes a broker.
func (c *poolRemoveCommand) Run(s streams) error {
	return c.do(s, provider.PoolChange{Action: "remove"})
}

type poolDrainCommand struct {
	poolChange `embed:""`
}

// Run drains a broker.
func (c *poolDrainCommand) Run(s streams) error { return c.do(s, provider.PoolChange{Action: "drain"}) }

type poolUndrainCommand struct {
	poolChange `embed:""`
}

// Run ends a drain.
func (c *poolUndrainCommand) Run(s streams) error {
	return c.do(s, provider.PoolChange{Action: "undrain"})
}

type poolWeightCommand struct {
	poolChange `embed:""`
	Weight     string `arg:"" help:"1 to 65535, or default for the registered one." placeholder:"WEIGHT"`
}

// Run changes a weight.
func (c *poolWeightCommand) Run(s streams) error {
	change := provider.PoolChange{Action: "weight"}
	if c.Weight != "default" {
		var err error
		if change.Weight, err = strconv.Atoi(c.Weight); err != nil || change.Weight == 0 {
			return &exitError{exitUsage, fmt.Errorf("weight %q: write 1 to 65535, or default; drain takes a broker out", c.Weight)}
		}
	}
	return c.do(s, change)
}

// operator is who runs the command, as the audit trail shows it.
func operator() string {
	name := os.Getenv("SUDO_USER")
	if u, err := user.Current(); err == nil && name == "" {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return cmp.Or(name, "unknown")
	}
	return cmp.Or(name, "unknown") + "@" + host
}

// because says that the time was over rather than how that showed.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	return err
}
