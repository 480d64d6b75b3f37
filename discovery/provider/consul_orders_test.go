package provider

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/discovery"
)

// keys answers reads of a KV prefix through a fake Consul's blocking rules.
func (f *fakeConsul) keys(kv map[string]string) {
	f.set(func(f *fakeConsul) {
		f.kv, f.index = kv, f.index+1
	})
}

func TestOrdersHoldThroughWhatGoesWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeConsul()
		f.kv = map[string]string{}
		file := filepath.Join(t.TempDir(), "orders.json")
		begin := func() (*recorder, func()) {
			p, err := NewConsulOrders("orders", file, Deps{Transport: f})
			if err != nil {
				t.Fatal(err)
			}
			rec, stop := started(p)
			return rec, func() { _, _ = stop() }
		}
		rec, stop := begin()
		says := func(what string, want discovery.Orders) {
			t.Helper()
			time.Sleep(3 * time.Second)
			if u := last(rec); u.Err != nil || u.Orders == nil || cmp.Diff(want, *u.Orders) != "" {
				t.Errorf("%s: %+v %v", what, u.Orders, u.Err)
			}
		}
		fails := func(what, want string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			if u := last(rec); u.Orders != nil || u.Err == nil || !strings.Contains(u.Err.Error(), want) {
				t.Errorf("%s: %+v, error %v, want %q", what, u.Orders, u.Err, want)
			}
		}
		none := discovery.Orders{Weights: map[string]int{}}
		full := discovery.Orders{Removed: []string{"c:3"}, Weights: map[string]int{"a:1": 0, "b:2": 7}}
		kv := map[string]string{
			"kvip/pools/orders/audit":       `[]`,
			"kvip/pools/orders/members/a:1": `{"drained": true, "weight": 3}`,
			"kvip/pools/orders/members/b:2": `{"weight": 7}`,
			"kvip/pools/orders/members/c:3": `{"removed": true, "drained": true}`,
			"kvip/pools/orders/members/d:4": `{}`,
		}
		says("an empty store", none)
		f.keys(kv)
		says("orders", full)
		f.set(func(f *fakeConsul) { f.index++ })
		says("the same orders", full) // the file does not change, and still says when Consul has answered
		answered := last(rec).At
		f.keys(map[string]string{"kvip/pools/orders/members/a:1": `{"removed"`})
		fails("one that cannot be read", "KV kvip/pools/orders/members/a:1 cannot be read")
		f.keys(map[string]string{})
		fails("a store without anything", "lost its state")
		f.set(func(f *fakeConsul) { f.header = http.Header{"X-Consul-Results-Filtered-By-Acls": {"true"}}; f.index++ })
		fails("a token that may not see them", `needs key_prefix "kvip/pools/" read`)
		f.set(func(f *fakeConsul) { f.header = nil; f.index++ })
		f.set(func(f *fakeConsul) {
			f.trouble = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "Permission denied", 403) }
			f.index++
		})
		fails("one that may nothing", `403, "Permission denied`)
		stop()

		time.Sleep(time.Hour)
		rec, stop = begin()
		synctest.Wait()
		if all := rec.all(); !all[0].Stale || all[0].Orders == nil || cmp.Diff(full, *all[0].Orders) != "" || !all[0].At.Equal(answered) {
			t.Errorf("a restart begins with %+v, last answered at %v", all[0], answered)
		}
		f.set(func(f *fakeConsul) { f.trouble = nil })
		f.keys(map[string]string{"kvip/pools/orders/audit": `[]`})
		says("the last order is lifted", none)
		stop()
		for _, q := range f.asked() {
			if q.url.Query().Has("stale") { // an older answer would take an order back for a moment
				t.Fatalf("any server is asked: %v", q.url)
			}
		}
		var saved savedOrders
		if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &saved) != nil || len(saved.Weights) != 0 {
			t.Errorf("the file: %s %v", b, err)
		}
	})
}

// Orders on disk that are another pool's, or no orders, hold nobody up and count for nothing.
func TestOrdersOnDiskThatCannotBeUsed(t *testing.T) {
	for name, text := range map[string]string{
		"another pool's": `{"pool": "payments", "removed": ["a:1"]}`, "cut short": `{"pool": "orders", "removed": ["a`, "empty": "", "a pipe": "",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeConsul()
			f.kv = map[string]string{"kvip/pools/orders/members/b:2": `{"removed": true}`}
			file := filepath.Join(t.TempDir(), "orders.json")
			err := os.WriteFile(file, []byte(text), 0o600)
			if name == "a pipe" {
				err = errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewConsulOrders("orders", file, Deps{Transport: f})
			if err != nil {
				t.Fatal(err)
			}
			rec, stop := started(p)
			synctest.Wait()
			if all := rec.all(); len(all) != 1 || all[0].Stale || cmp.Diff([]string{"b:2"}, all[0].Orders.Removed) != "" {
				t.Errorf("%s: begins with %+v", name, all)
			}
			_, _ = stop()
		})
	}
}
