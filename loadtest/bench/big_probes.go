package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// bigProbes is what a pool of 2,000 brokers that all can be reached costs: its start, its memory, and its probes at an
// interval of 10 s, which is what one kvip uses less what another one does that hardly ever probes.
func bigProbes(ctx context.Context, r *bigRun) error {
	const brokers = 2000
	s, err := r.stubOf(ctx, "stub-2000", brokers, brokers, 100, 6)
	if err != nil {
		return err
	}
	probing, err := r.gatewayWith(ctx, "kvip-2000", s, "", ", health: {interval: 10s}", "")
	if err != nil {
		return err
	}
	r.say("2,000 brokers in the pool: from start to ready", "s", 0, probing.took.Seconds())
	began := time.Now()
	for up := 0; up < brokers; {
		if up, err = probing.serving(ctx); err != nil {
			return err
		}
		if time.Since(began) > time.Minute {
			return fmt.Errorf("only %d of %d brokers serve after a minute", up, brokers)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	r.say("... until all serve", "s", 0, probing.took.Seconds()+time.Since(began).Seconds())
	quiet, err := r.gatewayWith(ctx, "kvip-quiet", s, "", ", health: {interval: 1h}", "")
	if err != nil {
		return err
	}
	if err := pause(ctx, 15*time.Second); err != nil { // first probes, and every broker's second list
		return err
	}
	window := max(r.o.Cell, 10*time.Second) // every broker's turn
	var all, rest, probes, sizes []float64
	for round := range r.o.Rounds {
		from, err := clocks(probing.target, quiet.target)
		if err != nil {
			return err
		}
		if round == 0 && r.o.Profile != "" {
			err = profile(ctx, probing.admin, r.o.Profile, window)
		} else {
			err = pause(ctx, window)
		}
		if err != nil {
			return err
		}
		to, err := clocks(probing.target, quiet.target)
		if err != nil {
			return err
		}
		share := func(i int) float64 { return 100 * (to[i] - from[i]).Seconds() / window.Seconds() }
		all, rest, probes = append(all, share(0)), append(rest, share(1)), append(probes, share(0)-share(1))
		rss, err := resident(probing.pid)
		if err != nil {
			return err
		}
		sizes = append(sizes, rss/(1<<20))
	}
	r.say("2,000 brokers in the pool, no clients: all that kvip uses", "% of a core", 0, all...)
	r.say("... without probes: refreshes and the rest", "% of a core", 0, rest...)
	r.say("... probes at an interval of 10 s", "% of a core", 3, probes...)
	r.say("... each", "us", 150, times(probes, 1e4/(brokers/10))...)
	r.say("... resident", "MiB", 0, sizes...)
	return r.statusPages(ctx, probing)
}

// statusPages is how long an operator waits for what there is to see.
func (r *bigRun) statusPages(ctx context.Context, g *gateway) error {
	for _, path := range []string{"/", "/statusz.json", "/metrics", "/readyz?verbose"} {
		var took []float64
		size := int64(0)
		for range 5 {
			began := time.Now()
			body, err := open(ctx, http.MethodGet, g.admin+path)
			if err != nil {
				return err
			}
			size, err = io.Copy(io.Discard, body)
			_ = body.Close()
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			took = append(took, time.Since(began).Seconds()*1e3)
		}
		r.say(fmt.Sprintf("... GET %s, %d bytes", path, size), "ms", 0, took...)
	}
	return nil
}

// serving is how many members of the pool serve.
func (g *gateway) serving(ctx context.Context) (n int, err error) {
	st, err := g.status(ctx)
	if err != nil {
		return 0, err
	}
	for _, m := range st.Pools[0].Members {
		if m.State == "serving" {
			n++
		}
	}
	return n, nil
}

// profile has kvip write a CPU profile of the time.
func profile(ctx context.Context, admin, file string, d time.Duration) error {
	body, err := open(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%.0f", admin, d.Seconds()))
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, body); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
