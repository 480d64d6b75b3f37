package backends

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/backends/snapshot"
)

// saved runs a pool over a cluster until its state is on disk, and ends both. It returns the directory.
func savedPool(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	w := newWorld(t)
	c := w.cluster("A", three)
	lie(c, 18, []int32{0}, oldTable)
	w.up(Config{StateDir: dir}, three...)
	time.Sleep(time.Second)
	w.stop()
	c.Close()
	return dir
}

// A start with the registry and all brokers down serves what was last known, and says so.
func TestAColdStartFromDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := savedPool(t)
		time.Sleep(time.Minute)
		w := newWorld(t)
		p := w.start(Config{StateDir: dir})
		set := w.now()
		if set == nil {
			t.Fatal("nothing is answered")
		}
		snap := set.Snapshot()
		if diff := cmp.Diff([]int32{0, 1, 2}, w.brokers()); diff != "" {
			t.Errorf("brokers (-want +got):\n%s", diff)
		}
		if snap.Topic("orders") == nil || snap.Topic("orders").Partitions != 3 {
			t.Errorf("topics: %+v", snap.Topics)
		}
		if _, hi, _ := w.built()[0].APIs.Range(0); hi != 7 {
			t.Errorf("Produce up to %d: the old broker's table is forgotten", hi)
		}
		s := p.Status()
		if s.ClusterID != "A" || s.ClusterIDFrom != "state_dir" || !s.Snapshot.FromDisk || s.Snapshot.StateFile != "loaded" || !s.Ready {
			t.Errorf("status: %+v", s)
		}
		if age := s.Snapshot.AgeSeconds; age < 60 || age > 62 {
			t.Errorf("its age is %v s, want what it is by the wall clock, 61 s", age)
		}
		if !strings.Contains(strings.Join(s.Alarms, "\n"), "from disk") {
			t.Errorf("alarms: %q", s.Alarms)
		}
		if len(s.Members) != 3 {
			t.Errorf("%d members, want the 3 that were known", len(s.Members))
		}
		time.Sleep(4*time.Minute + 10*time.Second)
		if w.now() != nil {
			t.Error("it is still answered beyond max_stale")
		}

		// The brokers come back before the registry does.
		w.cluster("A", three)
		eventually(t, 10*time.Second, "confirmed", func() bool { return w.now() != nil && !p.Status().Snapshot.FromDisk })
	})
}

// What is served from disk is replaced as any view is, and not by a broker of another cluster.
func TestAColdStartIntoAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := savedPool(t)
		w := newWorld(t)
		w.cluster("B", three)
		p := w.start(Config{StateDir: dir})
		w.registry.list(three...)
		time.Sleep(10 * time.Second)
		if set := w.now(); set == nil || set.Snapshot().ClusterID != "A" {
			t.Error("the last known view is not served")
		}
		for a, s := range w.states() {
			if s != "quarantined wrong_cluster" {
				t.Errorf("%s is %s", a, s)
			}
		}
		if age := p.Status().Snapshot.AgeSeconds; age < 10 {
			t.Errorf("the view is %v s old: something confirmed it", age)
		}
	})
}

func TestAStateFileThatCannotBeUsed(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(file string) string
		cfg   Config
		wait  time.Duration
		want  string
	}{
		{"a byte changed", func(f string) string { return strings.Replace(f, `"node_id":0`, `"node_id":7`, 1) }, Config{}, 0, "the checksum does not match"},
		{"cut off", func(f string) string { return f[:len(f)/2] }, Config{}, 0, "the checksum does not match"},
		{"empty", func(string) string { return "" }, Config{}, 0, "not a state file"},
		{"another version", func(f string) string { return strings.Replace(f, `"version":2`, `"version":99`, 1) }, Config{}, 0, "version 99, this kvip reads 2"},
		{"another cluster", nil, Config{ClusterID: "B"}, 0, "cluster A, the configuration names B"},
		{"too old", nil, Config{}, 6 * time.Minute, "without its snapshot, which is 6m0s old"},
		{"a VIP address in it", nil, Config{VIPAddresses: []string{"localhost:9093"}}, 0, "vip_address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := savedPool(t)
				path := statePath(dir, "orders")
				if c.spoil != nil {
					raw, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					spoiled := c.spoil(string(raw))
					if spoiled == string(raw) {
						t.Fatal("the file was not changed")
					}
					if err := os.WriteFile(path, []byte(spoiled), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(c.wait)
				w := newWorld(t)
				c.cfg.StateDir = dir
				p := w.start(c.cfg)
				if w.now() != nil {
					t.Error("it is served")
				}
				if got := p.Status().Snapshot.StateFile; !strings.Contains(got, c.want) {
					t.Errorf("state_file: %q, want %q in it", got, c.want)
				}
				// It does not stand in the way.
				w.cluster("A", []int{29092})
				if c.cfg.ClusterID == "" && c.cfg.VIPAddresses == nil {
					w.registry.list(29092)
					eventually(t, 5*time.Second, "ready", func() bool { ok, _ := p.Ready(); return ok })
				}
			})
		})
	}
}

// Whatever stands where the state should be, a start neither waits for it nor takes memory for it, and says what it is.
func TestWhatIsNoStateFileAtAll(t *testing.T) {
	for want, put := range map[string]func(path string) error{
		"larger than": func(path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<40) // sparse
		},
		"not a file":            func(path string) error { return unix.Mkfifo(path, 0o600) },
		"not a file; remove it": func(path string) error { return os.Mkdir(path, 0o700) },
		"an older kvip's": func(path string) error {
			return os.WriteFile(strings.TrimSuffix(path, ".state")+".json", []byte("{}"), 0o600)
		},
		`the state of pool "payments"`: func(path string) error {
			dir := filepath.Dir(path)
			return errors.Join(saveState(dir, &state{Pool: "payments"}), os.Rename(statePath(dir, "payments"), path))
		},
		"too many levels": func(path string) error { return os.Symlink(path, path) },
	} {
		dir := t.TempDir()
		if err := put(statePath(dir, "orders")); err != nil {
			t.Fatal(err)
		}
		if s, err := loadState(dir, "orders"); s != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want an error with %q", s, err, want)
		}
	}
}

// A kvip that is killed while it saves leaves a file behind, each time another one: the next start removes it, and nothing
// of other pools, not even of one that is named alike.
func TestASaveThatWasKilledLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	kept := []string{".orders.state", ".orders.state12x", ".orders.state.state7", ".payments.state7", "orders.state", "orders.state7"}
	for _, name := range append([]string{".orders.state7", ".orders.state8130549230462890127"}, kept...) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	removeUnfinished(dir, "orders")
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if slices.Sort(kept); err != nil || !slices.Equal(left, kept) {
		t.Errorf("left are %q, %v, want %q", left, err, kept)
	}
}

// The pool's cluster id outlives a restart: it is not voted on again.
func TestThePinnedClusterIDIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := savedPool(t)
		time.Sleep(time.Hour) // the snapshot is beyond use
		w := newWorld(t)
		w.cluster("A", []int{19092})
		w.cluster("B", []int{9092, 9093, 9094})
		p := w.start(Config{StateDir: dir})
		w.registry.list(9092, 9093, 9094, 19092)
		eventually(t, 5*time.Second, "ready", func() bool { ok, _ := p.Ready(); return ok })
		if got := w.now().Snapshot().ClusterID; got != "A" {
			t.Errorf("the pool went over to cluster %s", got)
		}
	})
}

func TestAStateThatCannotBeSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", three)
		file := t.TempDir() + "/file"
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		p := w.up(Config{StateDir: file + "/below"}, three...)
		time.Sleep(time.Minute)
		if !strings.Contains(strings.Join(p.Status().Alarms, "\n"), "cannot be saved") {
			t.Errorf("alarms: %q", p.Status().Alarms)
		}
		if n := w.logs.FilterMessageSnippet("cannot be saved").Len(); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
	})
}

// A view survives its way to disk and back in all that clients can see.
func TestAViewSurvivesTheDisk(t *testing.T) {
	s := started(t)
	s.cur.Brokers[1].Rack = kmsg.StringPtr("r1")
	s.cur.Described[2].IsFenced = true
	dir := t.TempDir()
	if err := saveState(dir, &state{Pool: "orders", View: storeView(s.cur, time.Now())}); err != nil {
		t.Fatal(err)
	}
	stored, err := loadState(dir, "orders")
	if err != nil {
		t.Fatal(err)
	}
	back, err := stored.View.read(snapshotRules("A"))
	if err != nil {
		t.Fatal(err)
	}
	s.cur.Generation = 0
	if diff := cmp.Diff(s.cur, back, cmpopts.IgnoreTypes(kmsg.Tags{}), cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(snapshot.Snapshot{}, snapshot.Topic{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
