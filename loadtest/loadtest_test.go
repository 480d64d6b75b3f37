package loadtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/alecthomas/kong"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kvip/kvip/loadtest/report"
	"github.com/kvip/kvip/loadtest/scenario"
)

// TestMain is also the program that the tests start again for further processes and for the floor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "loadtest" {
		ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer cancel()
		if err := loadtest(ctx, os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) // gnet has goroutines from the program's start on
}

// loadtest is the command as the kvip program has it.
func loadtest(ctx context.Context, args []string, out io.Writer) error {
	var c struct {
		Drive   Drive   `cmd:"" default:"withargs"`
		Floor   Floor   `cmd:""`
		Merge   Merge   `cmd:""`
		Compare Compare `cmd:""`
	}
	parser, err := kong.New(&c)
	if err != nil {
		return err
	}
	k, err := parser.Parse(args)
	if err != nil {
		return err
	}
	c.Drive.Self, c.Drive.Args = []string{os.Args[0], "loadtest"}, args
	return map[string]func(context.Context, io.Writer, io.Writer) error{
		"drive": c.Drive.Run, "floor": c.Floor.Run, "merge <files>": c.Merge.Run, "compare <first> <second>": c.Compare.Run,
	}[k.Command()](ctx, out, io.Discard)
}

// run runs the command and returns its result, what it printed, and its error.
func run(t *testing.T, args ...string) (*report.Run, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "result.json")
	var out bytes.Buffer
	err := loadtest(t.Context(), append(args, "--json", path), &out)
	r, readErr := report.ReadFile(path)
	if readErr != nil && err == nil {
		t.Fatal(readErr)
	}
	return r, out.String(), err
}

// stalling is a server that answers at once, apart from a stall at each beginning of a period, in which it answers nobody.
type stalling struct {
	period, stall time.Duration
	old           bool // refuses ApiVersions above v3, and serves Metadata up to v8
}

// listen serves until the test ends.
func (s stalling) listen(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var (
		served sync.WaitGroup
		mu     sync.Mutex
		open   []net.Conn
	)
	served.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			served.Go(func() {
				defer c.Close()
				for {
					head := make([]byte, 4)
					if _, err := io.ReadFull(c, head); err != nil {
						return
					}
					request := make([]byte, binary.BigEndian.Uint32(head)&0xffff)
					if _, err := io.ReadFull(c, request); err != nil {
						return
					}
					if into := time.Since(began) % max(s.period, 1); into < s.stall {
						time.Sleep(s.stall - into)
					}
					if _, err := c.Write(respond(request, s.old)); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		served.Wait()
	})
	return ln.Addr().String()
}

// respond answers ApiVersions and Metadata as a broker with no topics does.
func respond(request []byte, old bool) []byte {
	key, version := int16(binary.BigEndian.Uint16(request)), int16(binary.BigEndian.Uint16(request[2:]))
	frame := append(make([]byte, 4), request[4:8]...)
	if key == 18 {
		a := kmsg.NewPtrApiVersionsResponse()
		a.Version = version
		a.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 13}, {ApiKey: 18, MaxVersion: 4}}
		if old {
			a.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 8}, {ApiKey: 18, MaxVersion: 3}}
		}
		if old && version > 3 {
			a.Version, a.ErrorCode = 0, 35
		}
		frame = a.AppendTo(frame)
	} else {
		m := kmsg.NewPtrMetadataResponse()
		m.Version, m.ClusterID = version, kmsg.StringPtr("stalling")
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = 1, "127.0.0.1", 9092
		m.Brokers = append(m.Brokers, b)
		if version >= 9 {
			frame = append(frame, 0)
		}
		frame = m.AppendTo(frame)
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// eventually tries until try is content. A generator that shares two processors with everybody else is late at times, and
// says so; what it says of the target must then be asked again, not believed.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	const patience = 2 * time.Minute
	began := time.Now()
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("not once in %s: %v", patience, err)
		}
		t.Log(err)
	}
}

// TestOpenLoopLatenciesAreThoseOfTheDelayPattern: with a pause of 100 ms each second, an operation that begins u into the
// pause waits 100 ms - u, and the others do not. So a tenth of the operations wait, evenly up to 100 ms: of all of them,
// the share above x is (100 ms - x) / 1 s.
func TestOpenLoopLatenciesAreThoseOfTheDelayPattern(t *testing.T) {
	target := stalling{period: time.Second, stall: 100 * time.Millisecond}.listen(t)
	eventually(t, func() error {
		r, _, err := run(t, "--target", target, "--rate", "400", "--arrival", "regular", "--duration", "3s", "--warmup", "100ms")
		if err != nil {
			return err
		}
		latency := r.Sides[0].Latency()
		for p, want := range map[float64]time.Duration{95: 50 * time.Millisecond, 99: 90 * time.Millisecond, 99.9: 99 * time.Millisecond} {
			if got := latency.At(p); float64((got - want).Abs()) > 0.05*float64(want) {
				return fmt.Errorf("p%g is %s, want %s within 5%%", p, got, want)
			}
		}
		return nil
	})
}

// TestAStallShowsInAnOpenLoopAndHidesInAClosedOne: 200 ms each 5 s stall 4% of the time. In an open loop 2% of the
// operations wait longer than 100 ms; in a closed one each client has a single operation that waits, among thousands.
func TestAStallShowsInAnOpenLoopAndHidesInAClosedOne(t *testing.T) {
	target := stalling{period: 5 * time.Second, stall: 200 * time.Millisecond}.listen(t)
	p99 := func(args ...string) time.Duration {
		r, _, err := run(t, append(args, "--target", target, "--duration", "5s", "--warmup", "0s")...)
		if r == nil {
			t.Fatal(err)
		}
		return r.Sides[0].Latency().At(99)
	}
	if got := p99("--rate", "300", "--arrival", "regular"); got < 100*time.Millisecond {
		t.Errorf("open loop: p99 is %s, want 100 ms at least", got)
	}
	eventually(t, func() error {
		if got := p99("--closed", "--clients", "4"); got >= 10*time.Millisecond {
			return fmt.Errorf("closed loop: p99 is %s, want less than 10 ms", got)
		}
		return nil
	})
}

// TestLagVoidsARunOnceEnoughOperationsAreLate: two late ones of a hundred may be the machine's hiccup.
func TestLagVoidsARunOnceEnoughOperationsAreLate(t *testing.T) {
	for _, c := range []struct {
		operations, late int
		void             bool
	}{{100, 2, false}, {100, 9, false}, {100, 12, true}, {5, 5, true}, {10_000, 90, false}, {10_000, 110, true}} {
		took, lag := hdrhistogram.New(1, int64(time.Hour), 3), hdrhistogram.New(1, int64(time.Hour), 3)
		for i := range c.operations {
			_ = took.RecordValue(int64(time.Millisecond))
			late := 10 * time.Microsecond
			if i < c.late {
				late = 2 * time.Millisecond
			}
			_ = lag.RecordValue(int64(late))
		}
		s := report.Side{Stages: map[string]report.Histogram{report.StageOperation: {Histogram: took}, report.StageLag: {Histogram: lag}}}
		if why := void(&s, report.LoopOpen, 0); (len(why) > 0) != c.void {
			t.Errorf("%d of %d late: %v", c.late, c.operations, why)
		}
	}
}

// TestTooFewClientsVoidTheRun: what finds no free client is counted against this machine, and the run says so.
func TestTooFewClientsVoidTheRun(t *testing.T) {
	target := stalling{period: 600 * time.Millisecond, stall: 580 * time.Millisecond}.listen(t)
	r, out, err := run(t, "--target", target, "--rate", "200", "--duration", "1s", "--clients", "2", "--timeout", "300ms", "--warmup", "0s")
	if err == nil || !strings.Contains(err.Error(), "VOID") || !strings.Contains(out, "raise --clients") {
		t.Errorf("%v\n%s", err, out)
	}
	if r == nil {
		t.Fatal("no result")
	}
	s := r.Sides[0]
	if i := slices.IndexFunc(s.Failures, func(f report.Failure) bool { return f.Class == "no_client" }); i < 0 || !s.Failures[i].Local || s.Local == 0 {
		t.Errorf("failures %+v", s.Failures)
	}
	if s.Intended < 150 || s.Started+s.Failures[len(s.Failures)-1].Count > s.Intended {
		t.Errorf("%+v", s.Counts)
	}
}

// TestTurnsProcessesCalibrationAndEventsMakeOneResult drives everything at once.
func TestTurnsProcessesCalibrationAndEventsMakeOneResult(t *testing.T) {
	a, b := stalling{}.listen(t), stalling{}.listen(t)
	todo := filepath.Join(t.TempDir(), "events.yaml")
	if err := os.WriteFile(todo, []byte("events:\n  - {at: 100ms, name: look, run: echo seen}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "report.html")
	r, out, err := run(t, "--target", a, "--vs", b, "--rounds", "2", "--duration", "300ms", "--warmup", "50ms", "--rate", "400",
		"--processes", "2", "--calibrate", "--events", todo, "--pid", fmt.Sprint(os.Getpid()), "--html", page, "--arrival", "regular",
		"--assert", "failed=0,done>0,rate_ratio>0.5")
	if r == nil {
		t.Fatal(err)
	}
	if err != nil && !strings.Contains(err.Error(), "VOID") { // the machine may be busy: no matter here
		t.Error(err)
	}
	if len(r.Sides) != 2 || r.Generators != 2 || r.Calibration == nil || r.Calibration.Done != 120 {
		t.Fatalf("%d sides of %d generators, calibration %+v\n%s", len(r.Sides), r.Generators, r.Calibration, out)
	}
	for _, s := range r.Sides {
		if s.Done != 240 || s.Intended != 240 || len(s.Rounds) != 2 || s.Latency().Count() != 240 {
			t.Errorf("%s: %+v in %d rounds", s.Target, s.Counts, len(s.Rounds))
		}
	}
	if r.Sides[0].Rounds[1].At < r.Sides[1].Rounds[0].At {
		t.Error("the turns do not alternate")
	}
	if cpu, ok := r.Sides[0].CPUPerOperation(); !ok || cpu <= 0 {
		t.Errorf("processor time per operation: %s %t", cpu, ok)
	}
	if len(r.Events) != 1 || !strings.Contains(r.Events[0].Detail, "seen") || r.Events[0].Error != "" {
		t.Errorf("events %+v", r.Events)
	}
	if !strings.Contains(out, "ratio") || !strings.Contains(out, "holds") {
		t.Errorf("printed:\n%s", out)
	}
	if raw, err := os.ReadFile(page); err != nil || !bytes.Contains(raw, []byte("<svg")) {
		t.Errorf("page of %d bytes, %v", len(raw), err)
	}
}

// TestATargetWithOlderVersionsIsLoadedAndCalibratedAlike: the floor must have the answers to what is asked in the end.
func TestATargetWithOlderVersionsIsLoadedAndCalibratedAlike(t *testing.T) {
	target := stalling{old: true}.listen(t)
	for _, name := range []string{"storm", "steady"} {
		args := []string{"--target", target, "--scenario", name, "--duration", "500ms", "--warmup", "0s", "--calibrate"}
		if name == "storm" {
			args = append(args, "--rate", "100")
		} else {
			args = append(args, "--pace", "100", "--clients", "50", "--library", strings.Join(scenario.LibraryNames(), ","))
		}
		r, out, err := run(t, args...)
		if r == nil {
			t.Fatal(err)
		}
		for _, s := range []*report.Side{&r.Sides[0], r.Calibration} {
			if s.Failed > 0 || s.Done == 0 {
				t.Errorf("%s, %s: %+v %+v\n%s", name, s.Label(), s.Counts, s.Failures, out)
			}
		}
		if name == "storm" && !strings.Contains(out, "asked once more") {
			t.Errorf("the refusal is not told of:\n%s", out)
		}
	}
}

// TestAnInterruptedRunReportsWhatItFoundSoFar: in one process and in several, in the table, the data and the page.
func TestAnInterruptedRunReportsWhatItFoundSoFar(t *testing.T) {
	target := stalling{}.listen(t)
	for _, processes := range []string{"1", "2"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		dir := t.TempDir()
		data, page := filepath.Join(dir, "result.json"), filepath.Join(dir, "report.html")
		time.AfterFunc(2500*time.Millisecond, func() { cancel(errors.New("enough")) })
		var out bytes.Buffer
		err := loadtest(ctx, []string{"--target", target, "--rate", "100", "--warmup", "0s", "--duration", "1m", "--processes", processes, "--json", data, "--html", page}, &out)
		if err == nil || !strings.Contains(err.Error(), "cut short") || !strings.Contains(out.String(), "CUT SHORT") {
			t.Errorf("%s processes: %v\n%s", processes, err, &out)
		}
		r, err := report.ReadFile(data)
		if err != nil {
			t.Fatal(err)
		}
		s := r.Sides[0]
		if r.Cut == "" || r.Duration < 1 || r.Duration > 30 || s.Done < 50 || s.Done+s.Failed+s.Local+5 < s.Intended || len(s.Windows) > 30 {
			t.Errorf("%s processes: cut %q after %g s, %+v in %d windows", processes, r.Cut, r.Duration, s.Counts, len(s.Windows))
		}
		if raw, err := os.ReadFile(page); err != nil || !bytes.Contains(raw, []byte("CUT SHORT")) {
			t.Errorf("page of %d bytes, %v", len(raw), err)
		}
	}
}

func TestConditionsDecideTheExitCode(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := ln.Addr().String()
	_ = ln.Close()
	args := []string{"--target", gone, "--scenario", "storm", "--rate", "100", "--duration", "200ms", "--warmup", "0s"}
	if _, out, err := run(t, args...); err == nil || !strings.Contains(err.Error(), "operations failed") || !strings.Contains(out, "refused") {
		t.Errorf("without conditions: %v\n%s", err, out)
	}
	if _, _, err := run(t, append(args, "--assert", "failed_refused>10")...); err != nil && !strings.Contains(err.Error(), "VOID") {
		t.Errorf("a condition that holds: %v", err)
	}
	if _, _, err := run(t, append(args, "--assert", "failed=0")...); err == nil || !strings.Contains(err.Error(), "failed=0 does not hold") {
		t.Errorf("a condition that does not: %v", err)
	}
}

func TestBadFlagsAreNamedWithTheirFix(t *testing.T) {
	for want, args := range map[string][]string{
		"--yes-really":          {"--target", "192.0.2.1:9092"},
		"nowhere":               {"--target", "127.0.0.1:1", "--vs", "nowhere"},
		"has no rate":           {"--target", "127.0.0.1:1", "--rate", "fast"},
		"times of their own":    {"--target", "127.0.0.1:1", "--scenario", "steady", "--rate", "5"},
		"a closed loop has no":  {"--target", "127.0.0.1:1", "--closed", "--rate", "5"},
		"unknown scenario":      {"--target", "127.0.0.1:1", "--scenario", "flood"},
		"unknown library":       {"--target", "127.0.0.1:1", "--scenario", "steady", "--library", "cobol"},
		"cannot be mixed":       {"--target", "127.0.0.1:1", "--scenario", "mixed", "--mix", "steady"},
		"a weight is a number":  {"--target", "127.0.0.1:1", "--mix", "kept=x"},
		"assertion 1":           {"--target", "127.0.0.1:1", "--assert", "p99"},
		"--brokers-only":        {"--target", "127.0.0.1:1", "--brokers-only", "--topic", "x"},
		"--asks: kept asks":     {"--target", "127.0.0.1:1", "--asks", "metadata-all"},
		"192.0.2.7:9092 is not": {"--target", "127.0.0.1:1", "--truth", "192.0.2.7:9092"},
		"--truth-bound 0s":      {"--target", "127.0.0.1:1", "--truth", "127.0.0.1:2", "--truth-bound", "0s"},
		"--truth: none of":      {"--target", "127.0.0.1:1", "--scenario", "storm", "--truth", "127.0.0.1:2"},
		"missing flags":         {"--scenario", "kept"},
		"--sources":             {"--target", "127.0.0.1:1", "--sources", "here"},
		"--processes":           {"--target", "127.0.0.1:1", "--processes", "0"},
	} {
		if err := loadtest(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q in it", args, err, want)
		}
	}
}

// TestATargetMayDieDuringTheRun: chaos is what events are for, and the figures up to then stay.
func TestATargetMayDieDuringTheRun(t *testing.T) {
	target := stalling{}.listen(t)
	todo := filepath.Join(t.TempDir(), "events.yaml")
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("events:\n  - {at: 500ms, name: dies, kill: {pid: %d}}\n", sleeper.Process.Pid)
	if err := os.WriteFile(todo, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var waited sync.WaitGroup
	waited.Go(func() { _ = sleeper.Wait() }) // a process that nobody has waited for still has a clock
	defer waited.Wait()
	r, out, _ := run(t, "--target", target, "--rate", "50", "--duration", "2100ms", "--warmup", "0s", "--pid", fmt.Sprint(sleeper.Process.Pid), "--events", todo)
	if r == nil || r.Sides[0].Done == 0 || !strings.Contains(out, "ended during the run") {
		t.Errorf("%+v\n%s", r, out)
	}
}

// TestASoakIsCalibratedBriefly: a load that changes over time is calibrated whole, for nobody knows which part matters.
func TestASoakIsCalibratedBriefly(t *testing.T) {
	for rate, want := range map[string]time.Duration{"": calibrationMost, "500": calibrationMost, "100@10m": 10 * time.Minute} {
		d := Drive{Target: "127.0.0.1:9092", Scenario: "mixed", Rate: rate, Arrival: "poisson", Duration: 10 * time.Minute, Warmup: time.Second,
			Timeout: time.Second, Clients: 10, Loops: 1, Processes: 1, Rounds: 1, Pace: 1, Every: time.Second, ReadRate: 1, Sources: "127.64.0.0/10"}
		p, err := d.plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		short := p.calibration()
		if short.config.Duration != want || short.config.Rate.Length() != want || p.config.Duration != 10*time.Minute || p.config.Rate.Length() != 10*time.Minute {
			t.Errorf("%q: calibrated for %s (%s), measured for %s", rate, short.config.Duration, short.config.Rate.Length(), p.config.Duration)
		}
	}
}
