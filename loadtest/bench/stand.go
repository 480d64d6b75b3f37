package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/floor"
	"github.com/kvip/kvip/loadtest/lab"
)

// stand is the running arrangement: a cluster, and what is measured over it.
type stand struct {
	dir     string
	kafka   *lab.Kafka
	targets []target
	answers []floor.Answer // as the broker gives them
	undo    []func() error // in reverse
}

// target is one column of the report.
type target struct {
	name, addr string
	pid        int
}

func (s *stand) close() error {
	var err error
	for _, f := range slices.Backward(s.undo) {
		err = errors.Join(err, f())
	}
	return err
}

// setUp starts everything. The stand it returns must be closed also after an error.
func setUp(ctx context.Context, o options, out io.Writer) (*stand, error) {
	s := &stand{}
	dir, err := os.MkdirTemp("", "kvip-bench-")
	if err != nil {
		return s, err
	}
	s.dir = dir
	s.undo = append(s.undo, func() error { return os.RemoveAll(dir) })
	for _, name := range o.Targets {
		if starters[name] == nil {
			return s, fmt.Errorf("unknown target %q: one of broker, floor, haproxy, kvip", name)
		}
	}
	fmt.Fprintf(out, "starting Kafka, %d topics x %d partitions x 3 replicas\n", o.Topics, o.Partitions)
	// Production settings: the quick ones cost a broker more CPU per request.
	if s.kafka, err = lab.StartKafka(ctx, lab.KafkaConfig{Version: o.Kafka, Production: true, Racks: []string{"a", "b", "c"}}); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.kafka.Close)
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("topics were not ready within a minute"))
	defer cancel()
	if err := createTopics(limit, s.kafka, o.Topics, o.Partitions); err != nil {
		return s, err
	}
	if s.answers, err = floor.Capture(ctx, s.kafka.Node(0).Addr(), requests()); err != nil {
		return s, err
	}
	for _, name := range o.Targets {
		t, err := starters[name](ctx, o, s)
		switch {
		case errors.Is(err, errNotInstalled):
			fmt.Fprintf(out, "%s is left out: %v\n", name, err)
			continue
		case err != nil:
			return s, fmt.Errorf("start %s: %w", name, err)
		}
		t.name = name
		s.targets = append(s.targets, t)
	}
	return s, nil
}

// starters are the targets by name.
var starters = map[string]func(context.Context, options, *stand) (target, error){
	"kvip": startKvip, "floor": startFloor, "broker": theBroker, "haproxy": startHAProxy,
}

var errNotInstalled = errors.New("not installed")

// theBroker is the first node; the others serve nobody.
func theBroker(_ context.Context, _ options, s *stand) (target, error) {
	n := s.kafka.Node(0)
	return target{addr: n.Addr(), pid: n.Pid()}, nil
}

func startKvip(ctx context.Context, o options, s *stand) (target, error) {
	path := o.Kvip
	if path == "" {
		path = filepath.Join(s.dir, "kvip")
		if err := build(ctx, path, "./cmd/kvip"); err != nil {
			return target{}, err
		}
	}
	g, err := s.gateway(ctx, "kvip", path, s.kafka.Bootstrap(), "", "", "")
	if err != nil {
		return target{}, err
	}
	return g.target, nil
}

// gateway is a kvip.
type gateway struct {
	target
	admin string
	took  time.Duration // from start to ready
}

// gateway starts the kvip at path over some brokers. Without listen it has a port of its own; pool and vip are further keys of
// theirs, in YAML on one line, each behind a comma.
func (s *stand) gateway(ctx context.Context, name, path string, brokers []string, listen, pool, vip string) (*gateway, error) {
	admin, err := s.port()
	if err == nil && listen == "" {
		listen, err = s.port()
	}
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`log: {level: warn}
admin: {listen: %q, pprof: true}
state_dir: %q
pools:
  - {name: bench, discovery: {type: static, brokers: [%s]}%s}
vips:
  - {name: bench, listen: %q, pool: bench%s}
`, admin, filepath.Join(s.dir, name+"-state"), strings.Join(quote(brokers), ", "), pool, listen, vip)
	file := filepath.Join(s.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	began := time.Now()
	p, err := s.start(name, path, "serve", "-c", file)
	if err != nil {
		return nil, err
	}
	g := &gateway{target: target{name: name, addr: listen, pid: p.Pid()}, admin: "http://" + admin}
	err = until(ctx, p, func(ctx context.Context) error { return fetch(ctx, http.MethodGet, g.admin+"/readyz", nil) })
	g.took = time.Since(began)
	return g, err
}

func startFloor(ctx context.Context, o options, s *stand) (target, error) {
	listen, err := s.port()
	if err != nil {
		return target{}, err
	}
	return startFloorOn(ctx, o, s, listen)
}

func startFloorOn(ctx context.Context, o options, s *stand, listen string) (target, error) {
	path := filepath.Join(s.dir, "kvip-floor")
	if err := build(ctx, path, "./loadtest/floor/kvip-floor"); err != nil {
		return target{}, err
	}
	raw, err := json.Marshal(s.answers)
	if err != nil {
		return target{}, err
	}
	file := filepath.Join(s.dir, "answers.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return target{}, err
	}
	loops := o.Loops
	if loops == 0 {
		loops = runtime.NumCPU()
	}
	p, err := s.start("floor", path, "--listen", listen, "--answers", file, "--loops", fmt.Sprint(loops), "--keep-alive", "2m")
	if err != nil {
		return target{}, err
	}
	return target{addr: listen, pid: p.Pid()}, waitAnswers(ctx, p, listen)
}

// startHAProxy puts HAProxy in TCP mode before all three brokers.
func startHAProxy(ctx context.Context, _ options, s *stand) (target, error) {
	path, err := exec.LookPath("haproxy")
	if err != nil {
		return target{}, fmt.Errorf("%w (apt-get install haproxy)", errNotInstalled)
	}
	listen, err := s.port()
	if err != nil {
		return target{}, err
	}
	var servers strings.Builder
	for i, addr := range s.kafka.Bootstrap() {
		fmt.Fprintf(&servers, "  server b%d %s\n", i+1, addr)
	}
	config := fmt.Sprintf("defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\nlisten kafka\n  bind %s\n  balance roundrobin\n%s", listen, servers.String())
	file := filepath.Join(s.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return target{}, err
	}
	p, err := s.start("haproxy", path, "-db", "-f", file)
	if err != nil {
		return target{}, err
	}
	return target{addr: listen, pid: p.Pid()}, waitAnswers(ctx, p, listen)
}

func build(ctx context.Context, path, pkg string) error {
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, pkg).CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s (run from the module's root): %w\n%s", pkg, err, out)
	}
	return nil
}

// port reserves a port for the stand's life and returns its address.
func (s *stand) port() (string, error) {
	port, release, err := lab.ReservePort("127.0.0.1")
	if err != nil {
		return "", err
	}
	s.undo = append(s.undo, func() error { release(); return nil })
	return fmt.Sprintf("127.0.0.1:%d", port), nil
}

func (s *stand) start(name, path string, args ...string) (*lab.Process, error) {
	p, err := lab.StartProcess(lab.ProcessConfig{Name: name, Path: path, Args: args, LogPath: filepath.Join(s.dir, name+".log")})
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, func() error {
		if !p.Running() {
			return fmt.Errorf("%s ended by itself:\n%s", name, p.LogTail())
		}
		return p.Kill()
	})
	return p, nil
}

const readyWithin = 30 * time.Second

func waitAnswers(ctx context.Context, p *lab.Process, addr string) error {
	return until(ctx, p, func(ctx context.Context) error {
		_, err := floor.Capture(ctx, addr, requestsFor()) // ApiVersions, which all have
		return err
	})
}

// until repeats try until it succeeds, the process has ended, or the time is over.
func until(ctx context.Context, p *lab.Process, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if !p.Running() || pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s is not ready: %w\n%s", p.Name(), err, p.LogTail())
		}
	}
}

func quote(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = fmt.Sprintf("%q", s)
	}
	return out
}
