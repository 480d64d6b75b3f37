package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Resolver looks up host names and keeps the answers for a minute, failures too: a broker that advertises a name and is
// registered by its address would otherwise cost look-ups in every probe. Names come from brokers, so the look-ups a
// second are bounded. It is for concurrent callers, who share one look-up of a name.
type Resolver struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	limit  *rate.Limiter

	mu    sync.Mutex
	known map[string]*resolved
}

// resolved is one look-up; its fields may be read once done is closed.
type resolved struct {
	done  chan struct{}
	addrs []netip.Addr
	err   error
	until time.Time
}

const (
	resolveFor   = time.Minute
	resolveKept  = 10_000
	resolveRate  = 200 // look-ups a second
	resolveBurst = 500
)

var errLookups = errors.New("too many look-ups of advertised names at once")

// NewResolver returns an empty Resolver; lookup nil is the system's.
func NewResolver(lookup func(ctx context.Context, host string) ([]netip.Addr, error)) *Resolver {
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	return &Resolver{lookup: lookup, limit: rate.NewLimiter(resolveRate, resolveBurst), known: map[string]*resolved{}}
}

// Lookup returns a host's addresses, as Config.Resolve wants it.
func (r *Resolver) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	k := r.known[host]
	mine := k == nil || k.stale()
	if mine {
		if !r.limit.Allow() {
			r.mu.Unlock()
			return nil, errLookups
		}
		if len(r.known) >= resolveKept {
			clear(r.known)
		}
		k = &resolved{done: make(chan struct{})}
		r.known[host] = k
	}
	r.mu.Unlock()
	if !mine {
		select {
		case <-k.done:
			return k.addrs, k.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	begun := time.Now()
	k.addrs, k.err = r.lookup(ctx, host)
	k.until = time.Now().Add(resolveFor)
	if ctx.Err() != nil {
		// The caller's time ran out, which says the less about the name the shorter it was.
		k.until = time.Now().Add(20 * time.Since(begun))
	}
	close(k.done)
	return k.addrs, k.err
}

// stale says that a finished look-up is too old.
func (k *resolved) stale() bool {
	select {
	case <-k.done:
		return !time.Now().Before(k.until)
	default:
		return false
	}
}
