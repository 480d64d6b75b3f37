package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// patience bounds each wait in these tests; nothing sleeps that long when all is well.
const patience = 20 * time.Second

// process is a running `kvip serve`.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	file  string
	admin string
	exit  chan error

	mu  sync.Mutex
	log []map[string]any
}

// serve starts the command, with its log at hand, through sh so that limits can be set before ("ulimit -n 256").
func serve(t *testing.T, before, config string, env ...string) *process {
	t.Helper()
	p := &process{t: t, file: filepath.Join(t.TempDir(), "kvip.yaml"), exit: make(chan error, 1)}
	p.write(config)
	p.cmd = exec.Command("sh", "-c", before+"; exec kvip serve -c "+p.file)
	p.cmd.Env = append(os.Environ(), env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(stderr)
	}()
	go func() {
		<-read
		p.exit <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-read
		if t.Failed() {
			for _, line := range p.lines() {
				t.Log(line)
			}
		}
	})
	return p
}

func (p *process) write(config string) {
	p.t.Helper()
	if err := os.WriteFile(p.file, []byte(config), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) read(r io.Reader) {
	for s := bufio.NewScanner(r); s.Scan(); {
		line := map[string]any{}
		if json.Unmarshal(s.Bytes(), &line) != nil {
			line["msg"] = s.Text()
		}
		p.mu.Lock()
		p.log = append(p.log, line)
		p.mu.Unlock()
	}
}

func (p *process) lines() []map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]map[string]any(nil), p.log...)
}

// logged waits for a log line that has text in it, and returns it.
func (p *process) logged(text string) map[string]any {
	p.t.Helper()
	var found map[string]any
	p.within(fmt.Sprintf("a log line with %q", text), func() bool {
		for _, line := range p.lines() {
			if strings.Contains(fmt.Sprint(line), text) {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

// within waits until ok.
func (p *process) within(what string, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// readyz asks the admin listener.
func (p *process) readyz() (int, string) {
	if p.admin == "" {
		p.admin, _ = p.logged("kvip is up")["admin"].(string)
	}
	resp, err := http.Get("http://" + p.admin + "/readyz")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func (p *process) untilReady() {
	p.t.Helper()
	p.within("readiness", func() bool { code, _ := p.readyz(); return code == http.StatusOK })
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ended waits for the end and returns the exit code.
func (p *process) ended() int {
	p.t.Helper()
	select {
	case err := <-p.exit:
		var ee *exec.ExitError
		if err == nil {
			return 0
		} else if errors.As(err, &ee) {
			return ee.ExitCode()
		}
		p.t.Fatal(err)
	case <-time.After(patience):
		p.t.Fatalf("still runs after %s", patience)
	}
	return -1
}

// cluster starts brokers and returns a configuration of a kvip over them, whose VIP is at the address that it returns too.
func cluster(t *testing.T, extra string) (config, vip string) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(2, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	vip = freeAddress(t)
	return configuration(t, vip, c.ListenAddrs(), extra), vip
}

func configuration(t *testing.T, vip string, brokers []string, extra string) string {
	return fmt.Sprintf(`
admin: {listen: 127.0.0.1:0}
state_dir: %s
pools:
  - name: orders
    discovery: {type: static, brokers: [%s]}
    health: {interval: 200ms, timeout: 200ms}
vips:
  - {name: orders, listen: %q, pool: orders}
%s
`, t.TempDir(), strings.Join(brokers, ", "), vip, extra)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// brokers bootstraps a new client at the VIP and returns how many brokers it is told.
func brokers(vip string) (int, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(vip))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	meta, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	return len(meta.Brokers), nil
}

// TestServeAndLeave: SIGTERM turns /readyz red at once; during the grace newcomers are served; then the quiet connection
// is closed, the port is free, and the exit code is 0, well before the drain timeout.
func TestServeAndLeave(t *testing.T) {
	config, vip := cluster(t, "drain: {grace: 1s, timeout: 15s}")
	p := serve(t, "true", config)
	p.untilReady()
	if n, err := brokers(vip); n != 2 || err != nil {
		t.Fatalf("the VIP tells %d brokers, %v", n, err)
	}
	quiet, err := net.Dial("tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()

	p.signal(syscall.SIGTERM)
	told := time.Now()
	p.within("/readyz to turn red", func() bool {
		code, body := p.readyz()
		return code == http.StatusServiceUnavailable && body == "not ready: process: shutting down"
	})
	if n, err := brokers(vip); n != 2 || err != nil {
		t.Errorf("during the grace the VIP tells %d brokers, %v", n, err)
	}
	if since := time.Since(told); since > time.Second {
		t.Logf("the machine is slow: grace checked after %s", since)
	}
	_ = quiet.SetReadDeadline(time.Now().Add(patience))
	if _, err := quiet.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the quiet connection is not closed: %v", err)
	}
	if code := p.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(told); took < time.Second || took > 12*time.Second {
		t.Errorf("left after %s; the grace is 1s, and nothing else had to be waited for", took)
	}
	if _, err := net.Dial("tcp", vip); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting afterwards: %v, want refused", err)
	}
}

// TestSecondSignalEndsAtOnce: whoever does not want to wait sends it again, and gets exit code 1. One that comes right after
// the first does not count: a process group and its supervisor send one each.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	config, _ := cluster(t, "drain: {grace: 10m}")
	p := serve(t, "true", config)
	p.untilReady()
	told := time.Now()
	p.signal(syscall.SIGTERM)
	p.logged("leaving")
	p.signal(syscall.SIGINT)
	if time.Since(told) < 400*time.Millisecond {
		p.logged("signal again: taken for the same one")
	}
	time.Sleep(600*time.Millisecond - time.Since(told))
	select {
	case err := <-p.exit:
		t.Fatalf("it ended at the same signal's echo: %v", err)
	default:
	}
	p.signal(syscall.SIGINT)
	if code := p.ended(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// TestOneKvipAStateDir: a second process on the same state_dir is refused, and told whose it is and what to do; after a
// crash nothing has to be cleaned up.
func TestOneKvipAStateDir(t *testing.T) {
	config, vip := cluster(t, "")
	first := serve(t, "true", config)
	first.untilReady()
	other := strings.ReplaceAll(config, vip, freeAddress(t))
	second := serve(t, "true", other)
	if code := second.ended(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	second.logged(fmt.Sprintf("is in use by the kvip with pid %d: stop that one, or give this one a state_dir of its own", first.cmd.Process.Pid))
	first.signal(syscall.SIGKILL)
	<-first.exit
	third := serve(t, "true", other)
	third.untilReady()
	third.signal(syscall.SIGTERM)
	if code := third.ended(); code != 0 {
		t.Errorf("after a crash: exit code %d", code)
	}
}

// TestReload: SIGHUP applies the log level, names what waits for a restart, and refuses a file with faults; clients and
// connections notice nothing.
func TestReload(t *testing.T) {
	config, vip := cluster(t, "log: {level: info}")
	p := serve(t, "true", config)
	p.untilReady()
	kept, err := net.Dial("tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()

	p.write(strings.ReplaceAll(strings.ReplaceAll(config, "level: info", "level: debug"), "interval: 200ms", "interval: 300ms"))
	p.signal(syscall.SIGHUP)
	p.logged("log level changed")
	if line := p.logged("wait for a restart"); fmt.Sprint(line["sections"]) != "[pool orders]" {
		t.Errorf("sections that wait: %v", line["sections"])
	}
	p.write(config + "colour: blue\n")
	p.signal(syscall.SIGHUP)
	p.logged(`unknown key "colour"`)
	p.logged("nothing has changed")

	_ = kept.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := kept.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection from before: %v", err)
	}
	if n, err := brokers(vip); n != 2 || err != nil {
		t.Errorf("after the reloads the VIP tells %d brokers, %v", n, err)
	}
	p.signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestColdStartWithoutBrokers: the process stays up, bound and not ready, says why, and becomes ready by itself when a
// broker comes.
func TestColdStartWithoutBrokers(t *testing.T) {
	broker, vip := freeAddress(t), freeAddress(t)
	p := serve(t, "true", configuration(t, vip, []string{broker}, ""))
	p.within("a reason", func() bool {
		code, body := p.readyz()
		return code == http.StatusServiceUnavailable && strings.HasPrefix(body, "not ready: pool orders: ")
	})
	if c, err := net.Dial("tcp", vip); err != nil {
		t.Errorf("the VIP is not bound: %v", err)
	} else {
		c.Close()
	}
	var port int
	if _, err := fmt.Sscanf(broker, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.untilReady()
	if n, err := brokers(vip); n != 1 || err != nil {
		t.Errorf("the VIP tells %d brokers, %v", n, err)
	}
}

// TestDescriptorLimit: too small a limit is refused with the way out; a small one lowers what pools may use, says so, and
// serves.
func TestDescriptorLimit(t *testing.T) {
	config, vip := cluster(t, "")
	p := serve(t, "ulimit -n 64", config)
	if code := p.ended(); code != 1 {
		t.Errorf("with 64: exit code %d, want 1", code)
	}
	p.logged("the limit of open files is 64, but")

	p = serve(t, "ulimit -n 256", config)
	p.untilReady()
	p.logged("max_upstream is 1 instead of 16")
	p.logged("vip orders may hold ")
	if n, err := brokers(vip); n != 2 || err != nil {
		t.Errorf("with 256 the VIP tells %d brokers, %v", n, err)
	}
}

// TestSystemd: READY=1 comes when the VIPs are bound, STOPPING=1 when the process leaves.
func TestSystemd(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wait := func(want string) {
		t.Helper()
		_ = l.SetReadDeadline(time.Now().Add(patience))
		for buf := make([]byte, 1024); ; {
			n, err := l.Read(buf)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if string(buf[:n]) == want {
				return
			}
		}
	}
	config, _ := cluster(t, "")
	p := serve(t, "true", config, "NOTIFY_SOCKET="+socket)
	wait("READY=1")
	wait("STATUS=ready")
	p.signal(syscall.SIGTERM)
	wait("STOPPING=1")
	if code := p.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// contractMetrics are the names that dashboards and alerts rely on (those that this step has).
var contractMetrics = []string{
	"kvip_connections", "kvip_connections_closed_total", "kvip_requests_total", "kvip_request_duration_seconds",
	"kvip_snapshot_age_seconds", "kvip_snapshot_generation", "kvip_snapshot_rejected_total", "kvip_backend_up",
	"kvip_backend_state", "kvip_backend_inflight", "kvip_discovery_last_success_seconds", "kvip_pool_members", "kvip_build_info",
}

// TestMetrics: after a bootstrap all of the contract's metrics are there, and Prometheus' own linter has no word against
// any of kvip's. Two VIPs and two pools share the registry.
func TestMetrics(t *testing.T) {
	config, vip := cluster(t, "")
	config = strings.Replace(config, "\nvips:\n", `
  - {name: spare, standby: true, discovery: {type: static, brokers: [127.0.0.1:1]}}
vips:
  - {name: second, listen: "127.0.0.1:0", pool: orders, lookup: forward}
`, 1)
	p := serve(t, "true", config)
	p.untilReady()
	if _, err := brokers(vip); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range contractMetrics {
		if !strings.Contains(string(text), "# TYPE "+name+" ") {
			t.Errorf("/metrics lacks %s", name)
		}
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "kvip_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}
