//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvip/kvip/loadtest/cputime"
	"github.com/kvip/kvip/loadtest/report"
	"github.com/kvip/kvip/loadtest/stub"
)

// Pools of sizes, and with losses, that no test machine could run in real brokers, under storms of bootstraps. The stub's
// bytes are a broker's. KVIP_FULL: the sizes and rates that docs/SCALE.md has figures of.

// storm is a load test that runs meanwhile.
type storm struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	json string
}

// startStorm begins bootstraps at g: connect, ApiVersions, one of all topics, one topic, the brokers, DescribeCluster and
// FindCoordinator, close. Each answer is held against what the brokers of truth say themselves.
func startStorm(t *testing.T, g *gateway, rate int, d time.Duration, truth ...string) *storm {
	t.Helper()
	s := &storm{json: filepath.Join(t.TempDir(), "storm.json")}
	args := []string{"loadtest", "--target", g.addr, "--scenario", "storm", "--rate", fmt.Sprint(rate), "--duration", d.String(),
		"--pid", fmt.Sprint(g.Pid()), "--cluster-id", stub.ClusterID, "--json", s.json, "--topic", stub.TopicName(0),
		"--asks", "metadata-all=2,metadata-one=2,metadata-brokers=2,describe-cluster=1,find-coordinator=1", "--draw", "1"}
	for _, addr := range truth {
		args = append(args, "--truth", addr)
	}
	s.cmd = exec.Command(kvipBinary, args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	return s
}

// noneFailed waits for the end and judges. Whether the generator kept up is noted: on a busy machine it does not, and a
// latency says nothing then, but an answer is right or wrong all the same.
func (s *storm) noneFailed(t *testing.T) {
	t.Helper()
	err := s.cmd.Wait()
	b, readErr := os.ReadFile(s.json)
	var run report.Run
	if readErr != nil || json.Unmarshal(b, &run) != nil || len(run.Sides) != 1 {
		t.Fatalf("the load test has no result: %v\n%s", err, s.out.String())
	}
	side := run.Sides[0]
	t.Logf("%d bootstraps of %d, %d failed, p50 %v, p99 %v, longest %v, kvip %.0f us each (%.0f%% of a core); void: %q",
		side.Done, side.Intended, side.Failed+side.Local, side.Latency().At(50).Round(10*time.Microsecond), side.Latency().At(99).Round(10*time.Microsecond),
		side.Latency().At(100).Round(time.Millisecond), 1e6*side.CPU.Seconds/float64(max(side.Done, 1)), 100*side.CPU.Seconds/side.Elapsed, run.Verdict.Void)
	if side.Failed+side.Local > 0 || side.Done < side.Intended*99/100 || side.Done == 0 {
		t.Errorf("%d of %d bootstraps failed, %d were answered: %v\n%s", side.Failed+side.Local, side.Intended, side.Done, err, s.out.String())
	}
}

// sightings are when members were first seen to serve, and when they were seen no more.
type sightings struct {
	mu     sync.Mutex
	serves map[string]time.Time
	gone   map[string]time.Time
}

// watch looks at the members all the time until the test ends.
func (g *gateway) watch(t *testing.T) *sightings {
	s := &sightings{serves: map[string]time.Time{}, gone: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			if st, err := g.fetch(); err == nil {
				s.take(st)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

func (s *sightings) take(st status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[string]bool{}
	for _, m := range st.Pools[0].Members {
		now[m.Broker] = true
		if _, seen := s.serves[m.Broker]; !seen && m.State == "serving" {
			s.serves[m.Broker] = time.Now()
		}
	}
	for addr := range s.serves {
		if _, seen := s.gone[addr]; !seen && !now[addr] {
			s.gone[addr] = time.Now()
		}
	}
}

func (s *sightings) of(which map[string]time.Time, addr string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return which[addr]
}

// within says how long after each was due a member was seen, and fails for those that took longer than limit.
func (s *sightings) within(t *testing.T, what string, limit time.Duration, which map[string]time.Time, due map[string]time.Time) {
	t.Helper()
	for addr := range due {
		eventually(t, limit+10*time.Second, addr+" is "+what, func() bool { return !s.of(which, addr).IsZero() })
	}
	var took []time.Duration
	for addr, at := range due {
		took = append(took, s.of(which, addr).Sub(at))
	}
	slices.Sort(took)
	n := len(took)
	t.Logf("%d are %s after %v, %v, %v (median, 99th percentile, last)", n, what, took[n/2].Round(time.Millisecond), took[n*99/100].Round(time.Millisecond), took[n-1].Round(time.Millisecond))
	if took[n-1] > limit {
		t.Errorf("one is %s after %v, want %v", what, took[n-1], limit)
	}
}

func (g *gateway) fetch() (s status, err error) {
	resp, err := http.Get("http://" + g.admin + "/statusz.json")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if err = json.NewDecoder(resp.Body).Decode(&s); err == nil && len(s.Pools) != 1 {
		err = fmt.Errorf("%d pools", len(s.Pools))
	}
	return s, err
}

// registries are where a pool's members come from: add and remove change one. The rate at which that can be done is the
// command's.
var registries = map[string]func(t *testing.T, c *stub.Cluster) (discovery string, change func(g *gateway, i int, in bool)){
	"consul": func(t *testing.T, c *stub.Cluster) (string, func(*gateway, int, bool)) {
		return "", func(g *gateway, i int, in bool) {
			if in {
				g.pool(t, "add", c.Addrs()[i])
			} else {
				g.pool(t, "remove", c.Addrs()[i])
			}
		}
	},
	"file": func(t *testing.T, c *stub.Cluster) (string, func(*gateway, int, bool)) {
		path := filepath.Join(t.TempDir(), "brokers.yaml")
		listed := map[int]bool{0: true, 1: true, 2: true}
		write := func() {
			text := "brokers:\n"
			for i, addr := range c.Addrs() {
				if listed[i] {
					text += "  - " + addr + "\n"
				}
			}
			if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}
		write()
		return "{type: file, path: " + path + "}", func(_ *gateway, i int, in bool) {
			listed[i] = in
			write()
		}
	},
}

func TestAPoolGrowsAndShrinksUnderStorms(t *testing.T) {
	const few = 3
	many, rate, every, spare := 9, 300, 200*time.Millisecond, 6*time.Second
	if full {
		many, rate, every, spare = 100, 2000, 300*time.Millisecond, 20*time.Second
	}
	for _, name := range []string{"consul", "file"} {
		t.Run(name, func(t *testing.T) {
			// Brokers join the cluster before they are registered, and leave it after.
			c, err := stub.Start(stub.Config{Brokers: many, Joined: few, Topics: 30, Partitions: 3, Racks: []string{"a", "b", "c"}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			discovery, change := registries[name](t, c)
			s := settings{discovery: discovery, pool: "    balancer: {policy: round-robin}"}
			var g *gateway
			if name == "consul" {
				consul := ownConsul(t)
				s.notReady = true
				g = start(t, consul, s)
				for i := range few {
					change(g, i, true)
				}
				g.waitReady(t)
			} else {
				g = start(t, nil, s)
			}
			seen := g.watch(t)
			first := cluster(few)
			storm := startStorm(t, g, rate, 2*time.Duration(many-few)*every+spare, c.Addrs()[:few]...)
			time.Sleep(2 * time.Second) // its warm-up, and a second

			from, began := cpu(t, g), time.Now()
			added := map[string]time.Time{}
			for i := few; i < many; i++ {
				c.List(cluster(i + 1)...)
				added[c.Addrs()[i]] = time.Now()
				change(g, i, true)
				time.Sleep(time.Until(began.Add(time.Duration(i-few+1) * every)))
			}
			t.Logf("%d brokers came in %v", many-few, time.Since(began).Round(100*time.Millisecond))
			seen.within(t, "in use", 3*time.Second, seen.serves, added)
			t.Logf("kvip used %.0f%% of a core, %d MiB", 100*(cpu(t, g)-from).Seconds()/time.Since(began).Seconds(), rss(t, g.Pid())>>20)
			served := c.Served()
			eventually(t, 10*time.Second, "every broker gets forwards", func() bool {
				return !slices.ContainsFunc(cluster(many), func(i int) bool { return c.Served()[i] <= served[i] })
			})

			from, began = cpu(t, g), time.Now()
			removed := map[string]time.Time{}
			for i := many - 1; i >= few; i-- {
				removed[c.Addrs()[i]] = time.Now()
				change(g, i, false)
				c.List(cluster(i)...)
				time.Sleep(time.Until(began.Add(time.Duration(many-i) * every)))
			}
			t.Logf("%d brokers went in %v", many-few, time.Since(began).Round(100*time.Millisecond))
			seen.within(t, "out", 3*time.Second, seen.gone, removed)
			t.Logf("kvip used %.0f%% of a core, %d MiB", 100*(cpu(t, g)-from).Seconds()/time.Since(began).Seconds(), rss(t, g.Pid())>>20)
			served = c.Served()
			storm.noneFailed(t)
			for i, n := range c.Served() {
				if in := i < few; in == (n == served[i]) {
					t.Errorf("broker %d is in the pool: %v, and got %d forwards since", i, in, n-served[i])
				}
			}
			if st := g.status(t); len(st.Pools[0].Members) != few || st.Pools[0].Snapshot.Brokers != len(first) {
				t.Errorf("in the end: %+v", st.Pools[0])
			}
		})
	}
}

// cluster is the first n brokers.
func cluster(n int) []int {
	var all []int
	for i := range n {
		all = append(all, i)
	}
	return all
}

func cpu(t *testing.T, g *gateway) time.Duration {
	t.Helper()
	used, err := cputime.Of(g.Pid())
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// Nine brokers in three racks: two racks die at once, or freeze, and come back.
func TestTwoOfThreeRacksAreLostUnderStorms(t *testing.T) {
	rate, notice, hold := 300, time.Second, time.Second
	if full {
		rate, notice, hold = 2000, 9*time.Second, 15*time.Second
	}
	lost := []int{0, 1, 3, 4, 6, 7}
	left := []int{2, 5, 8}
	for name, lose := range map[string]func(c *stub.Cluster) (back func() error){
		"killed": func(c *stub.Cluster) func() error {
			c.Kill(lost...)
			return func() error { return c.Restart(lost...) }
		},
		"frozen": func(c *stub.Cluster) func() error {
			c.Freeze(lost...)
			return func() error { c.Thaw(lost...); return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, found := startStub(t, stub.Config{Brokers: 9, Topics: 30, Partitions: 3, Racks: []string{"a", "b", "c"}})
			g := start(t, nil, settings{discovery: found, pool: "    balancer: {policy: round-robin}"})
			eventually(t, 10*time.Second, "all serve", func() bool { return g.serving(t) == 9 })
			var truth []string
			for _, i := range left {
				truth = append(truth, c.Addrs()[i])
			}
			storm := startStorm(t, g, rate, 4*time.Second+notice+2*hold, truth...)
			time.Sleep(2 * time.Second)
			back := lose(c)
			began := time.Now()
			eventually(t, 5*time.Second, "the others are out", func() bool { return g.serving(t) == 3 })
			t.Logf("after %v six are out of use", time.Since(began).Round(time.Millisecond))
			time.Sleep(time.Until(began.Add(notice))) // a cluster takes about 9 s to notice
			c.List(left...)
			time.Sleep(hold)
			if err := back(); err != nil {
				t.Fatal(err)
			}
			c.List(cluster(9)...)
			began = time.Now()
			eventually(t, 60*time.Second, "all are back", func() bool { return g.serving(t) == 9 })
			t.Logf("after %v all are in use again", time.Since(began).Round(time.Millisecond))
			storm.noneFailed(t)
		})
	}
}

func (g *gateway) serving(t *testing.T) (n int) {
	t.Helper()
	st, err := g.fetch()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range st.Pools[0].Members {
		if m.State == "serving" {
			n++
		}
	}
	return n
}

// A pool of 2,000: ready before all are probed, everything to be seen, and changes that come fast are taken together.
func TestAPoolOfThousands(t *testing.T) {
	brokers, changes := 300, 200
	if full {
		brokers, changes = 2000, 1000
	}
	c, err := stub.Start(stub.Config{Brokers: brokers, Topics: 100, Partitions: 6})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	path := filepath.Join(t.TempDir(), "brokers.yaml")
	write := func(weight int) {
		var text strings.Builder
		text.WriteString("brokers:\n")
		for i, addr := range c.Addrs() {
			fmt.Fprintf(&text, "  - {address: %q, weight: %d}\n", addr, 1+weight*(i%2))
		}
		if err := cmp.Or(os.WriteFile(path+".new", []byte(text.String()), 0o644), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	began := time.Now()
	g := start(t, nil, settings{discovery: "{type: file, path: " + path + "}", pool: "    health: {interval: 10s}"})
	t.Logf("%d brokers: ready after %v", brokers, time.Since(began).Round(10*time.Millisecond))
	eventually(t, 30*time.Second, "all serve", func() bool { return g.serving(t) == brokers })
	t.Logf("all serve after %v, resident %d MiB", time.Since(began).Round(10*time.Millisecond), rss(t, g.Pid())>>20)
	for _, page := range []string{"/", "/metrics", "/statusz.json"} {
		began := time.Now()
		resp, err := http.Get("http://" + g.admin + page)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(c.Addrs()[brokers-1])) {
			t.Errorf("%s: %s, %d bytes, without the last broker: %v", page, resp.Status, len(body), err)
		}
		t.Logf("%s: %d bytes after %v", page, len(body), time.Since(began).Round(100*time.Microsecond))
	}

	before := g.status(t).Pools[0].View
	used, began := cpu(t, g), time.Now()
	for i := range changes {
		write(1 + i%7)
		time.Sleep(time.Until(began.Add(time.Duration(i+1) * time.Second / time.Duration(changes))))
	}
	took := time.Since(began)
	eventually(t, 5*time.Second, "the last change is in force", func() bool {
		want := 1 + 1 + (changes-1)%7
		changed := 0
		for _, m := range g.status(t).Pools[0].Members {
			if m.Weight == want {
				changed++
			}
		}
		return changed == brokers/2
	})
	views := g.status(t).Pools[0].View - before
	t.Logf("%d changes of %d members in %v: %d views, %v of CPU", changes, brokers/2, took.Round(time.Millisecond), views, (cpu(t, g) - used).Round(time.Millisecond))
	if views == 0 || views > uint64(60*time.Since(began).Seconds()) {
		t.Errorf("%d changes made %d views", changes, views)
	}
}
