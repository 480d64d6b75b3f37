package provider

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/kvip/kvip/discovery"
)

// How registries are read that cannot be watched.
const (
	defaultPoll = 10 * time.Second
	minPoll     = 100 * time.Millisecond
	maxPoll     = time.Hour
	pollTimeout = 5 * time.Second // for one read
	pollRetry   = 2 * time.Second // the longest pause after a failure, unless the interval is shorter
)

// again asks for another read: capacity 1.
type again chan struct{}

func newAgain() again { return make(again, 1) }

// Refresh implements discovery.Refresher.
func (a again) Refresh() {
	select {
	case a <- struct{}{}:
	default:
	}
}

// poller reads at once, then each interval, and whenever it is asked to.
type poller struct {
	again
	Deps
	interval time.Duration
	// due is how long after a good read the next one is; nil is the interval.
	due func() time.Duration
	// read returns what is listed; its ctx ends after pollTimeout.
	read func(ctx context.Context) (discovery.Update, error)
}

// Name implements discovery.Provider.
func (p *poller) Name() string { return p.Deps.Name }

// Run implements discovery.Provider.
func (p *poller) Run(ctx context.Context, publish func(discovery.Update)) error {
	retry := &backoff.ExponentialBackOff{
		InitialInterval: min(250*time.Millisecond, p.interval), Multiplier: 2, RandomizationFactor: 0.25, MaxInterval: min(pollRetry, p.interval),
	}
	for {
		one, cancel := context.WithTimeoutCause(ctx, pollTimeout, fmt.Errorf("no answer within %v", pollTimeout))
		u, err := p.read(one)
		if cause := context.Cause(one); err != nil && cause != nil {
			err = cause
		}
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := p.interval
		if p.due != nil {
			wait = p.due()
		}
		wait += rand.N(wait / 10) // so that many do not ask at once
		if err != nil {
			u, wait = discovery.Update{Err: fmt.Errorf("%s: %w", p.Name(), err)}, retry.NextBackOff()
		} else {
			retry.Reset()
		}
		u.Provider, u.At = p.Name(), p.Now()
		publish(u)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-p.again:
		}
		timer.Stop()
	}
}

// checkInterval says what is wrong with an interval.
func checkInterval(d time.Duration) error {
	if d < minPoll || d > maxPoll {
		return &FieldError{Field: "interval", Problem: fmt.Sprintf("%v is out of range", d), Fix: fmt.Sprintf("write %v to %v", minPoll, maxPoll)}
	}
	return nil
}

// checkAddrs checks a list of host:port that must not be empty.
func checkAddrs(field, what string, addrs []string) (errs []error) {
	if len(addrs) == 0 {
		return []error{&FieldError{Field: field, Problem: "lists no " + what, Fix: "give at least one host:port"}}
	}
	for i, a := range addrs {
		if _, _, err := splitAddr(a); err != nil {
			errs = append(errs, &FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Problem: err.Error(), Fix: "write host:port"})
		}
	}
	return errs
}

// unique drops the instances whose address came before, and says so.
func unique(u *discovery.Update) {
	seen := map[string]bool{}
	kept := u.Instances[:0]
	for _, in := range u.Instances {
		if addr := in.Addr(); seen[addr] {
			u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.ID, Addr: addr, Reason: "duplicate"})
			continue
		}
		seen[in.Addr()] = true
		kept = append(kept, in)
	}
	u.Instances = kept
}
