package loadtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/scenario"
	"github.com/kvip/kvip/loadtest/schedule"
)

// defaultRate is light: a first try must not look like an attack.
const defaultRate = "1000"

// plan is what the flags come to.
type plan struct {
	*Drive
	config scenario.Config // of the first target; others differ by the target only
	show   func(target string, progress scenario.Progress)
}

// side is one target of a plan.
type side struct {
	target string
	name   string
	pid    int
}

// sides are the targets, without the calibration's.
func (p *plan) sides() []side {
	all := []side{{target: p.Target, pid: p.PID}}
	if p.Vs != "" {
		all = append(all, side{target: p.Vs, pid: p.VsPID})
	}
	return all
}

func (d *Drive) plan(ctx context.Context) (*plan, error) {
	p := &plan{Drive: d, config: scenario.Defaults()}
	cfg := &p.config
	cfg.Target, cfg.Scenario, cfg.Loops = d.Target, d.Scenario, d.Loops
	cfg.Warmup, cfg.Duration, cfg.Timeout, cfg.Seed, cfg.Arrival = d.Warmup, d.Duration, d.Timeout, d.Seed, schedule.Arrival(d.Arrival)
	cfg.ClientID, cfg.APIVersionsVersion, cfg.MetadataVersion, cfg.ClusterID = d.ClientID, d.APIVersions, d.Metadata, d.ClusterID
	cfg.Lookup = kafka.Lookup{All: len(d.Topic) == 0 && !d.BrokersOnly, Topics: d.Topic}
	cfg.TopicErrors, cfg.EpochGrace, cfg.DialBrokers, cfg.Remote = d.TopicErrors, d.EpochGrace, d.DialBrokers, d.YesReally
	cfg.Pace, cfg.Every, cfg.Spread, cfg.ReadRate, cfg.SourceCount = d.Pace, d.Every, d.Spread, d.ReadRate, d.SourceCount
	cfg.Parts = max(1, d.Processes)
	cfg.Part = max(0, d.Part)
	var faults []error
	var err error
	if cfg.Sources, err = netip.ParsePrefix(d.Sources); err != nil {
		faults = append(faults, fmt.Errorf("--sources: %w", err))
	}
	if d.Library != "" {
		if cfg.Libraries, err = scenario.ParseShares(d.Library); err != nil {
			faults = append(faults, fmt.Errorf("--library: %w", err))
		}
	}
	if d.Mix != "" {
		if cfg.Mix, err = scenario.ParseShares(d.Mix); err != nil {
			faults = append(faults, fmt.Errorf("--mix: %w", err))
		}
	}
	if d.Asks != "" {
		if cfg.Asks, err = scenario.ParseShares(d.Asks); err != nil {
			faults = append(faults, fmt.Errorf("--asks: %w", err))
		}
		if d.Scenario != "storm" && d.Scenario != "mixed" {
			faults = append(faults, fmt.Errorf("--asks: %s asks as its clients do; storm and mixed bootstrap", d.Scenario))
		}
	}
	cfg.Draw = d.Draw
	if len(d.Truth) > 0 {
		if d.TruthBound <= 0 {
			faults = append(faults, fmt.Errorf("--truth-bound %s: it must be positive", d.TruthBound))
		}
		cfg.Truth = check.NewTruth(check.TruthConfig{
			Brokers: d.Truth, Groups: scenario.Groups, ClientID: d.ClientID, Bound: d.TruthBound,
			Now: func() time.Duration { return time.Duration(engine.Now()) },
		})
	}
	if d.BrokersOnly && (len(d.Topic) > 0 || d.Metadata == 0) {
		faults = append(faults, errors.New("--brokers-only goes with no --topic, and with a Metadata version above 0, where an empty list means all topics"))
	}
	if d.Processes < 1 || d.Rounds < 1 || d.Processes > 64 {
		faults = append(faults, fmt.Errorf("--processes %d, --rounds %d: at least one of each, and 64 processes at most", d.Processes, d.Rounds))
	}
	faults = append(faults, p.rate(), p.reach(ctx))
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	p.clients()
	return p, cfg.Validate()
}

// rate fills in when operations begin.
func (p *plan) rate() error {
	cfg := &p.config
	paced := scenario.Scenarios[cfg.Scenario].Paced
	switch {
	case (paced || p.Closed) && p.Rate != "":
		return fmt.Errorf("--rate %s: %s", p.Rate, map[bool]string{true: "libraries have times of their own", false: "a closed loop has no rate"}[paced])
	case paced && p.Closed:
		return fmt.Errorf("--closed: the libraries of %s have times of their own", cfg.Scenario)
	case paced || p.Closed:
	default:
		text := p.Rate
		if text == "" {
			text = defaultRate
		}
		profile, err := schedule.Parse(text, p.Duration)
		if err != nil {
			return err
		}
		cfg.Rate, cfg.Duration = profile, profile.Length()
	}
	cfg.Window = max(time.Second, (cfg.Duration / 600).Round(time.Second))
	return nil
}

// calibrationMost is how long a steady load is calibrated: a soak need not take twice its time.
const calibrationMost = 30 * time.Second

// calibration is the plan for the server that does nothing: the same load, but not for as long where it is the same all
// the time.
func (p *plan) calibration() *plan {
	if p.config.Duration <= calibrationMost || strings.ContainsAny(p.Rate, "@:") {
		return p
	}
	short := *p
	short.config.Duration = calibrationMost
	if p.config.Rate != nil {
		short.config.Rate, _ = schedule.Parse(cmp.Or(p.Rate, defaultRate), calibrationMost) // it was parsed before
	}
	short.config.Window = time.Second
	return &short
}

// enoughFor is how long the target may stall before kept connections are all waiting.
const enoughFor = 300 * time.Millisecond

// clients fills in this process's share of the clients.
func (p *plan) clients() {
	cfg := &p.config
	all := p.Clients
	if all == 0 {
		all = 64
		if cfg.Rate != nil {
			stall := enoughFor
			if cfg.Scenario != "kept" && cfg.Scenario != "mixed" {
				stall = cfg.Timeout // clients without connections of their own cost nothing until they are needed
			}
			all = max(all, int(cfg.Rate.Peak()*stall.Seconds()))
		}
		all = min(all, cfg.Parts*scenario.MaxClients())
	}
	cfg.Clients = all / cfg.Parts
	if cfg.Part < all%cfg.Parts {
		cfg.Clients++
	}
}

// reach refuses targets that are not this machine's, unless they were really meant.
func (p *plan) reach(ctx context.Context) error {
	targets := append([]string{}, p.Truth...)
	for _, s := range p.sides() {
		targets = append(targets, s.target)
	}
	for _, addr := range targets {
		target, err := engine.Resolve(ctx, addr)
		if err != nil {
			return err
		}
		if !target.Addr.Addr().IsLoopback() && !p.YesReally {
			return fmt.Errorf("%s is not on this machine's loopback; --yes-really loads it all the same", addr)
		}
	}
	return nil
}
