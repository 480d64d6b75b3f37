package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/floor"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/scenario"
	"github.com/kvip/kvip/loadtest/stub"
)

// bigParts are the measurements over stub clusters, by name.
var bigParts = map[string]func(context.Context, *bigRun) error{
	"cpu": bigCPU, "refresh": bigRefresh, "memory": bigMemory, "million": bigMillion, "brokers": bigBrokers,
	"readers": bigReaders, "fleet": bigFleet, "rtt": bigRTT, "haproxy": bigHAProxy, "probes": bigProbes,
}

func bigNames() []string {
	var names []string
	for name := range bigParts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// figure is one result, with the limit that it is to stay below, if there is one.
type figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value spread  `json:"value"`
	Limit float64 `json:"limit,omitempty"`
}

func (f figure) String() string {
	digits := 2
	if f.Value.Median >= 100 {
		digits = 0
	}
	s := fmt.Sprintf("%-72s %s %s", f.Name, f.Value.format(digits), f.Unit)
	switch {
	case f.Limit == 0:
		return s
	case f.Value.Median <= f.Limit:
		return s + fmt.Sprintf(", within %g", f.Limit)
	}
	return s + fmt.Sprintf(", MISSED: %g", f.Limit)
}

// bigRun is one part under way.
type bigRun struct {
	o       options
	out     io.Writer
	stand   *stand
	kvip    string // binaries
	stubs   string
	figures []figure
}

func (r *bigRun) say(name, unit string, limit float64, values ...float64) {
	f := figure{name, unit, spreadOf(values), limit}
	r.figures = append(r.figures, f)
	fmt.Fprintln(r.out, f)
}

func runBig(ctx context.Context, o options, out io.Writer) (err error) {
	var all []figure
	for _, name := range o.Big {
		part := bigParts[name]
		if part == nil {
			return fmt.Errorf("unknown measurement %q: one of %s", name, strings.Join(bigNames(), ", "))
		}
		r := &bigRun{o: o, out: out, stand: &stand{}}
		fmt.Fprintf(out, "%s: %s, %d CPUs, %s; load average %s\n", name, kernel(), runtime.NumCPU(), runtime.Version(), loadAverage())
		if err = r.prepare(ctx); err == nil {
			err = part(ctx, r)
		}
		if err = errors.Join(err, r.stand.close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, r.figures...)
	}
	if o.JSON != "" {
		raw, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(o.JSON, append(raw, '\n'), 0o644)
	}
	return nil
}

func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(b) + " ? ? ?")[:3], " ")
}

func (r *bigRun) prepare(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "kvip-bench-")
	if err != nil {
		return err
	}
	r.stand.dir = dir
	r.stand.undo = append(r.stand.undo, func() error { return os.RemoveAll(dir) })
	r.stubs, r.kvip = filepath.Join(dir, "kvip-stub"), r.o.Kvip
	if r.kvip == "" {
		r.kvip = filepath.Join(dir, "kvip")
		if err := build(ctx, r.kvip, "./cmd/kvip"); err != nil {
			return err
		}
	}
	return build(ctx, r.stubs, "./loadtest/stub/kvip-stub")
}

// stubbed is a stub cluster in a process of its own.
type stubbed struct {
	target
	control string
	addrs   []string
}

// stub starts one of which three brokers can be reached.
func (r *bigRun) stub(ctx context.Context, name string, brokers, topics, partitions int) (*stubbed, error) {
	return r.stubOf(ctx, name, brokers, 3, topics, partitions)
}

func (r *bigRun) stubOf(ctx context.Context, name string, brokers, listening, topics, partitions int) (*stubbed, error) {
	control, err := r.stand.port()
	if err != nil {
		return nil, err
	}
	p, err := r.stand.start(name, r.stubs, "--brokers", fmt.Sprint(brokers), "--listening", fmt.Sprint(listening), "--topics", fmt.Sprint(topics),
		"--partitions", fmt.Sprint(partitions), "--control", control)
	if err != nil {
		return nil, err
	}
	s := &stubbed{target: target{name: name, pid: p.Pid()}, control: "http://" + control}
	err = until(ctx, p, func(ctx context.Context) error { return s.get(ctx, "/addrs", &s.addrs) })
	if err != nil {
		return nil, err
	}
	s.addr = s.addrs[0]
	return s, nil
}

func (s *stubbed) get(ctx context.Context, path string, into any) error {
	return fetch(ctx, http.MethodGet, s.control+path, into)
}

func (s *stubbed) post(ctx context.Context, path string) error {
	return fetch(ctx, http.MethodPost, s.control+path, nil)
}

// fetch decodes the JSON that a request is answered with; into may be nil.
func fetch(ctx context.Context, method, url string, into any) error {
	body, err := open(ctx, method, url)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if into == nil {
		return nil
	}
	return json.NewDecoder(body).Decode(into)
}

// open returns what a request is answered with; a status that is no success is an error.
func open(ctx context.Context, method, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", url, resp.Status, text)
	}
	return resp.Body, nil
}

// churn changes 0.1% of the partitions again and again until stopped.
func (s *stubbed) churn(ctx context.Context, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(ctx, every) == nil {
			_ = s.post(ctx, "/bump?share=0.001")
		}
	}()
	return func() { cancel(); <-done }
}

// gateway starts a kvip over a stub; listen may be shared, "" takes a port of its own.
func (r *bigRun) gateway(ctx context.Context, name string, s *stubbed, listen string, vip string) (*gateway, error) {
	return r.gatewayWith(ctx, name, s, listen, "", vip)
}

// gatewayWith has further keys of the pool, in YAML on one line.
func (r *bigRun) gatewayWith(ctx context.Context, name string, s *stubbed, listen, pool, vip string) (*gateway, error) {
	return r.stand.gateway(ctx, name, r.kvip, s.addrs, listen, pool, vip)
}

// large starts the usual cluster, of 100,000 partitions, and a kvip over it; listen is as gateway has it.
func (r *bigRun) large(ctx context.Context, listen string) (*stubbed, *gateway, error) {
	s, err := r.stub(ctx, "stub-100k", 3, bigTopics, bigPartitions)
	if err != nil {
		return nil, nil, err
	}
	g, err := r.gateway(ctx, "kvip-100k", s, listen, "")
	return s, g, err
}

// status is what is read here of what kvip says of itself: one pool and one VIP.
type status struct {
	Pools []struct {
		Snapshot struct{ Generation float64 } // how many it has accepted
		Members  []struct{ State string }
	}
	VIPs []struct{ Connections float64 }
}

func (g *gateway) status(ctx context.Context) (st status, err error) {
	if err := fetch(ctx, http.MethodGet, g.admin+"/statusz.json", &st); err != nil {
		return st, err
	}
	if len(st.Pools) != 1 || len(st.VIPs) != 1 {
		return st, fmt.Errorf("%s has %d pools and %d VIPs, not one of each", g.name, len(st.Pools), len(st.VIPs))
	}
	return st, nil
}

// generation is how many snapshots kvip has accepted.
func (g *gateway) generation(ctx context.Context) (float64, error) {
	st, err := g.status(ctx)
	if err != nil {
		return 0, err
	}
	return st.Pools[0].Snapshot.Generation, nil
}

// floorOf serves a server's answers from the floor.
func (r *bigRun) floorOf(ctx context.Context, addr string) (target, error) {
	listen, err := r.stand.port()
	if err != nil {
		return target{}, err
	}
	return r.floorOn(ctx, addr, listen)
}

func (r *bigRun) floorOn(ctx context.Context, addr, listen string) (target, error) {
	var err error
	if r.stand.answers, err = floor.Capture(ctx, addr, requestsFor(bigLookups[:]...)); err != nil {
		return target{}, err
	}
	t, err := startFloorOn(ctx, r.o, r.stand, listen)
	t.name = "floor"
	return t, err
}

var bigLookups = [...]kafka.Lookup{{All: true}, {Topics: []string{stub.TopicName(0)}}}

// load is a closed loop of lookups over kept connections.
func (r *bigRun) load(t target, all bool, clients int) scenario.Config {
	cfg := scenario.Defaults()
	cfg.Target, cfg.Clients, cfg.ClusterID = t.addr, clients, stub.ClusterID
	cfg.Warmup, cfg.Duration, cfg.Timeout = r.o.Warmup, r.o.Cell, 20*time.Second
	cfg.Lookup = bigLookups[1]
	if all {
		cfg.Lookup = bigLookups[0]
	}
	return cfg
}

// rounds measures each of some loads once a round and returns the cells by name; round 0 warms up.
func (r *bigRun) rounds(ctx context.Context, loads ...namedLoad) (map[string][]cell, error) {
	cells := map[string][]cell{}
	for round := range r.o.Rounds + 1 {
		for _, l := range loads {
			c, err := loadCell(ctx, l.name, l.target, l.cfg)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l.name, err)
			}
			if round > 0 {
				cells[l.name] = append(cells[l.name], c)
			}
		}
	}
	return cells, nil
}

type namedLoad struct {
	name   string
	target target
	cfg    scenario.Config
}

func pluck(cells []cell, f func(cell) float64) (v []float64) {
	for _, c := range cells {
		v = append(v, f(c))
	}
	return v
}

// over divides round by round.
func over(a, b []float64) (v []float64) {
	for i := range a {
		v = append(v, a[i]/b[i])
	}
	return v
}

func times(v []float64, by float64) (out []float64) {
	for _, x := range v {
		out = append(out, x*by)
	}
	return out
}

func resident(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, pages int
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0, err
	}
	return float64(pages * os.Getpagesize()), nil
}
