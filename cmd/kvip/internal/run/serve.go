// Package run is the composition root: it makes the parts that a configuration names, starts them in order, watches them,
// and lets the process leave without hurting a client.
package run

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/kvip/kvip/backends"
	"github.com/kvip/kvip/cmd/kvip/internal/admin"
	"github.com/kvip/kvip/cmd/kvip/internal/config"
	"github.com/kvip/kvip/discovery/provider"
)

// Options are what Serve needs besides a configuration.
type Options struct {
	// Version is shown in status.
	Version string
	Log     *zap.Logger
	// Level is the logger's, changed by a reload.
	Level zap.AtomicLevel
	// Reload reads the configuration again, on SIGHUP; nil: SIGHUP is only logged.
	Reload func() (*config.Config, config.Faults)
	// Ready is called once, in a goroutine of its own, when a client can bootstrap at every VIP for the first time. Its
	// ctx ends when the process is told to leave; leave tells it to.
	Ready func(ctx context.Context, st admin.Status, leave func())
}

// ErrForced is a second signal: the process was told to leave at once.
var ErrForced = errors.New("told to stop a second time: connections are cut")

// stopTimeout bounds each part's stop, after the drain.
const stopTimeout = 5 * time.Second

// unlistTimeout bounds how long a kvip that leaves waits for Consul.
const unlistTimeout = 3 * time.Second

// readinessInterval is how often the watcher looks whether a client could bootstrap.
const readinessInterval = 100 * time.Millisecond

// usualStart is how long a start may take before not being ready is worth a warning.
const usualStart = 5 * time.Second

// process is one running kvip.
type process struct {
	cfg      *config.Config
	version  string
	log      *zap.Logger
	level    zap.AtomicLevel
	ready    func(ctx context.Context, st admin.Status, leave func())
	started  time.Time
	registry *prometheus.Registry
	pools    []*backends.Pool // as in cfg.Pools
	vips     []*vip           // as in cfg.VIPs
	admin    *admin.Server
	// register keeps the VIPs listed in Consul; nil when the configuration does not want it.
	register *provider.SelfRegistration
	budget   budget
	// poolReserve is the pools' part of the budget's reserve.
	poolReserve int
	// unlockState lets another kvip have the state_dir.
	unlockState func()
	draining    atomic.Bool
	// leaving ends when the process is told to leave, by leave.
	leaving context.Context
	leave   context.CancelFunc
	waiting sync.WaitGroup
}

// Serve runs the gateway until ctx ends or a signal tells it to leave (see signals.go), and returns nil when it left as
// told, within the drain timeout; any other end is an error.
func Serve(ctx context.Context, cfg *config.Config, o Options) error {
	p := &process{cfg: cfg, version: o.Version, log: o.Log, level: o.Level, ready: o.Ready, started: time.Now(), unlockState: func() {}}
	defer func() { p.unlockState() }()
	p.leaving, p.leave = context.WithCancel(ctx)
	defer p.leave()
	if err := p.build(); err != nil {
		return explainBind(err)
	}
	for _, w := range p.budget.warnings {
		p.log.Warn(w)
	}
	forced, stopSignals := p.watchSignals(o.Reload)
	defer stopSignals()
	done := make(chan error, 1)
	go func() { done <- p.live() }()
	select {
	case err := <-done:
		return err
	case <-forced:
		return ErrForced
	}
}

// live is the process's life from the first service's start to the last one's end.
func (p *process) live() error {
	l := &lifecycle{log: p.log, services: p.services(), stopTimeout: stopTimeout}
	if err := l.start(p.leaving); err != nil {
		if p.leaving.Err() != nil {
			return nil // told to leave before everything ran
		}
		return explainBind(err)
	}
	p.log.Info("kvip is up", zap.String("version", p.version), zap.String("admin", p.admin.Addr()), zap.Int("open_files", p.budget.limit), zap.Int("reserved", p.budget.reserve))
	p.notify(daemon.SdNotifyReady)
	failure := l.wait(p.leaving)
	if failure != nil {
		p.log.Error("a part has failed: kvip stops", zap.Error(failure))
	}
	p.draining.Store(true)
	p.leave()
	p.notify(daemon.SdNotifyStopping)
	p.unlist()
	if failure == nil {
		p.drain()
	}
	err := l.stop()
	p.waiting.Wait()
	if err := errors.Join(failure, err); err != nil {
		return err
	}
	p.log.Info("kvip has left")
	return nil
}

// unlist takes the VIPs out of Consul before anything else changes for clients.
func (p *process) unlist() {
	if p.register == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unlistTimeout)
	defer cancel()
	p.register.Leave(ctx)
}

// drain lets clients go: /readyz is red already; after the grace newcomers are reset, what is in flight is answered, and
// quiet connections are closed, spread over the timeout.
func (p *process) drain() {
	d := p.cfg.Drain
	p.log.Info("leaving", zap.Duration("grace", d.Grace), zap.Duration("timeout", d.Timeout))
	time.Sleep(d.Grace)
	ctx, cancel := context.WithTimeout(context.Background(), d.Timeout)
	defer cancel()
	var all sync.WaitGroup
	for _, v := range p.vips {
		all.Go(func() { v.server.Drain(ctx) })
	}
	all.Wait()
}

// watchReadiness logs each change between ready and not, tells systemd, and calls Options.Ready once.
func (p *process) watchReadiness(ctx context.Context) error {
	tick := time.NewTicker(readinessInterval)
	defer tick.Stop()
	last, first := "unknown", true
	for {
		if reason := admin.FirstFailing(p.Conditions()); reason != last {
			last = reason
			if reason == "" {
				p.log.Info("ready: clients can bootstrap", zap.Duration("after", time.Since(p.started)))
				p.notify("STATUS=ready")
				if first && p.ready != nil {
					p.waiting.Go(func() { p.ready(p.leaving, p.Status(), p.leave) })
				}
				first = false
			} else if !p.draining.Load() {
				level := zap.WarnLevel
				if first && time.Since(p.started) < usualStart {
					level = zap.InfoLevel
				}
				p.log.Log(level, "not ready", zap.String("reason", reason))
				p.notify("STATUS=not ready: " + reason)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// notify tells systemd, when it started the process and wants to know.
func (p *process) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		p.log.Warn("telling systemd", zap.String("state", state), zap.Error(err))
	}
}
