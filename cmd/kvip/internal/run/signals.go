package run

import (
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/kvip/kvip/cmd/kvip/internal/config"
)

// sameSignal is how long after the first a signal to leave counts as the same one: a supervisor and the process group that
// it ends, or a terminal and a shell, send one each, at once. Who does not want to wait for the drain comes later.
const sameSignal = 500 * time.Millisecond

// watchSignals makes the first SIGTERM or SIGINT tell the process to leave, one that comes later than sameSignal after it
// close the channel that it returns, and SIGHUP read the configuration again. SIGQUIT keeps Go's own meaning: all goroutines' stacks, then out.
func (p *process) watchSignals(reload func() (*config.Config, config.Faults)) (forced <-chan struct{}, stop func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	force, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var told time.Time
		for {
			select {
			case <-end:
				return
			case s := <-signals:
				switch {
				case s == syscall.SIGHUP:
					p.reload(reload)
				case !told.IsZero() && time.Since(told) < sameSignal:
					p.log.Info("signal again: taken for the same one", zap.Stringer("signal", s), zap.Duration("after", time.Since(told)))
				case !told.IsZero():
					p.log.Warn("second signal: leaving at once", zap.Stringer("signal", s))
					close(force)
					return
				default:
					told = time.Now()
					p.log.Info("signal", zap.Stringer("signal", s))
					p.leave()
				}
			}
		}
	}()
	return force, func() {
		signal.Stop(signals)
		close(end)
		<-ended
	}
}

// reload applies what can change in a running process (the log level) and names what waits for a restart. A file with
// faults changes nothing.
func (p *process) reload(read func() (*config.Config, config.Faults)) {
	if read == nil {
		p.log.Info("SIGHUP: there is no configuration file to read again")
		return
	}
	next, faults := read()
	for _, f := range faults {
		if f.Warning {
			p.log.Warn("reload: " + f.What + "; fix: " + f.Fix)
		} else {
			p.log.Error(fmt.Sprintf("reload: %s:%d:%d: %s; fix: %s", f.File, f.Line, f.Col, f.What, f.Fix))
		}
	}
	if next == nil {
		p.log.Error("reload: the configuration has faults: nothing has changed")
		return
	}
	if next.Log.Level != p.cfg.Log.Level {
		if level, err := zap.ParseAtomicLevel(next.Log.Level); err == nil {
			p.level.SetLevel(level.Level())
			p.cfg.Log.Level = next.Log.Level
			p.log.Info("reload: log level changed", zap.String("level", next.Log.Level))
		}
	}
	if waits := differences(p.cfg, next); len(waits) > 0 {
		p.log.Warn("reload: these changes wait for a restart", zap.Strings("sections", waits))
		return
	}
	p.log.Info("reload: the configuration in force is the one in the file")
}

// differences names the sections in which two configurations differ.
func differences(a, b *config.Config) []string {
	var names []string
	add := func(name string, x, y any) {
		if !reflect.DeepEqual(x, y) {
			names = append(names, name)
		}
	}
	add("log", a.Log, b.Log)
	add("admin", a.Admin, b.Admin)
	add("state_dir", a.StateDir, b.StateDir)
	add("consul", a.Consul, b.Consul)
	add("register", a.Register, b.Register)
	add("drain", a.Drain, b.Drain)
	pools, vips := map[string][2]any{}, map[string][2]any{}
	for i, c := range []*config.Config{a, b} {
		for _, p := range c.Pools {
			pair := pools[p.Name]
			pair[i] = p
			pools[p.Name] = pair
		}
		for _, v := range c.VIPs {
			pair := vips[v.Name]
			pair[i] = v
			vips[v.Name] = pair
		}
	}
	for name, pair := range pools {
		add("pool "+name, pair[0], pair[1])
	}
	for name, pair := range vips {
		add("vip "+name, pair[0], pair[1])
	}
	slices.Sort(names)
	return names
}
