package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestResolverKeepsAnswersAndFailuresForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := map[string]int{}
		r := NewResolver(func(_ context.Context, host string) ([]netip.Addr, error) {
			calls[host]++
			if host == "bad" {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		})
		for range 6 { // at 0, 12, 24, 36, 48 and 60 s
			if a, err := r.Lookup(t.Context(), "good"); err != nil || len(a) != 1 {
				t.Fatalf("good: %v, %v", a, err)
			}
			if _, err := r.Lookup(t.Context(), "bad"); err == nil {
				t.Fatal("bad resolves")
			}
			time.Sleep(12 * time.Second)
		}
		if calls["good"] != 2 || calls["bad"] != 2 {
			t.Errorf("looked up %v, want each twice in a minute and a moment", calls)
		}
	})
}

func TestResolverSharesALookUpAndHoldsNobodyPastTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		r := NewResolver(func(ctx context.Context, _ string) ([]netip.Addr, error) {
			calls.Add(1)
			select {
			case <-time.After(time.Second):
				return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, err := r.Lookup(t.Context(), "slow"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := r.Lookup(ctx, "slow"); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		wg.Wait()
		if n := calls.Load(); n != 1 {
			t.Errorf("%d look-ups for 51 callers", n)
		}
		// A caller that had little time says little about a name.
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := r.Lookup(ctx, "other"); err == nil {
			t.Error("a name resolved in no time")
		}
		time.Sleep(500 * time.Millisecond)
		if _, err := r.Lookup(t.Context(), "other"); err != nil {
			t.Errorf("another caller gets %v", err)
		}
	})
}

func TestResolverBoundsTheLookUpsThatABrokerCanCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		r := NewResolver(func(context.Context, string) ([]netip.Addr, error) { calls++; return nil, nil })
		for i := range 30_000 {
			_, _ = r.Lookup(t.Context(), fmt.Sprint(i))
		}
		time.Sleep(time.Second)
		for i := range 30_000 {
			_, _ = r.Lookup(t.Context(), fmt.Sprint("more", i))
		}
		if calls != resolveBurst+resolveRate {
			t.Errorf("%d look-ups, want %d", calls, resolveBurst+resolveRate)
		}
	})
}
