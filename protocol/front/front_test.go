package front

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// gnet's process-wide worker pool.
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// pool answers from one snapshot, and each forward after delay.
type pool struct {
	set   atomic.Pointer[answer.Set]
	delay atomic.Int64
}

func (p *pool) Answers(snapshot.Time) *answer.Set { return p.set.Load() }

func (p *pool) Forward(r *forward.Request) {
	time.AfterFunc(time.Duration(p.delay.Load()), func() {
		b := binary.BigEndian.AppendUint32(nil, 6)
		r.Done(forward.Result{Frame: append(append(b, r.Frame[8:12]...), 0xab, 0xcd), Broker: "b1:9092"})
	})
}

func newPool(topics int) *pool {
	meta := kmsg.NewMetadataResponse()
	meta.Version, meta.ClusterID, meta.ControllerID = 12, kmsg.StringPtr("A"), 1
	meta.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "b1", Port: 9092}}
	for i := range topics {
		t := kmsg.NewMetadataResponseTopic()
		t.Topic = kmsg.StringPtr(fmt.Sprintf("topic-%06d", i))
		t.Partitions = make([]kmsg.MetadataResponseTopicPartition, 10)
		for i := range t.Partitions {
			t.Partitions[i].Partition = int32(i)
		}
		meta.Topics = append(meta.Topics, t)
	}
	var reader snapshot.Reader
	cand, fault := reader.Read(snapshot.Encoded{Version: meta.Version, Body: meta.AppendTo(nil)}, nil, true, nil, snapshot.Rules{ClusterID: "A"})
	if fault != nil {
		panic(fault)
	}
	apis := &snapshot.APIs{FinalizedFeaturesEpoch: -1, Keys: []kmsg.ApiVersionsResponseApiKey{
		{ApiKey: 3, MaxVersion: 13}, {ApiKey: 10, MaxVersion: 6}, {ApiKey: 18, MaxVersion: 4},
	}}
	p := &pool{}
	p.set.Store(answer.Build(answer.Input{Snapshot: cand.Snapshot, APIs: apis}, nil))
	return p
}

func start(t *testing.T, p *pool, cfg Config) *Server {
	t.Helper()
	cfg.Name = "test"
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 1000
	}
	reg := prometheus.NewRegistry()
	s, err := New(cfg, p, zaptest.NewLogger(t), reg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run() }()
	select {
	case <-s.Booted():
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Stop(ctx)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := s.conns.Load(); n != 0 {
			t.Errorf("%d connections are counted after the end", n)
		}
	})
	return s
}

func dial(t *testing.T, s *Server) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

var (
	apiVersions  = unhex("0000000b0012000000000065000174")                 // correlation id 101
	metadataNone = unhex("0000000f000300010000006600017400000000")         // 102
	findGroup    = unhex("00000013000a0004000000670001740000020467727000") // 103, forwarded
	metadataAll  = unhex("0000000f0003000100000068000174ffffffff")         // 104
	group        = bytes.Join([][]byte{apiVersions, metadataNone, findGroup, metadataAll}, nil)
)

// read returns the correlation id of the next answer and its length.
func read(c io.Reader) (id int32, n int, err error) {
	var head [8]byte
	if _, err = io.ReadFull(c, head[:]); err != nil {
		return 0, 0, err
	}
	n = int(binary.BigEndian.Uint32(head[:4])) - 4
	_, err = io.CopyN(io.Discard, c, int64(n))
	return int32(binary.BigEndian.Uint32(head[4:])), n, err
}

func expect(t *testing.T, c io.Reader, ids ...int32) {
	t.Helper()
	for _, want := range ids {
		if id, _, err := read(c); err != nil || id != want {
			t.Fatalf("answer %d, %v; want %d", id, err, want)
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("never: " + what)
}

func (s *Server) closedFor(reason string) uint64 { return s.Status().Closed[reason] }

// BL-07.
func TestPipelinedRequestsAreAnsweredInOrderOverASocket(t *testing.T) {
	p := newPool(3)
	s := start(t, p, Config{})
	p.delay.Store(int64(300 * time.Millisecond))
	whole, bytewise, other := dial(t, s), dial(t, s), dial(t, s)
	_, _ = whole.Write(group)
	for i := range group {
		_, _ = bytewise.Write(group[i : i+1])
	}
	begin := time.Now()
	_, _ = other.Write(metadataAll)
	expect(t, other, 104)
	if d := time.Since(begin); d > 200*time.Millisecond {
		t.Errorf("another connection waited %v behind a slow forward", d)
	}
	expect(t, whole, 101, 102, 103, 104)
	expect(t, bytewise, 101, 102, 103, 104)
	p.delay.Store(0)
	_, _ = whole.Write(bytes.Repeat(group, 200))
	for range 200 {
		expect(t, whole, 101, 102, 103, 104)
	}
	_, _ = whole.Write(group[:2])
	time.Sleep(20 * time.Millisecond)
	_, _ = whole.Write(group[2:8])
	time.Sleep(20 * time.Millisecond)
	_, _ = whole.Write(group[8:])
	expect(t, whole, 101, 102, 103, 104)
}

// BL-07: a half-close after the request still gets the answers that were pending.
func TestAHalfClosedClientGetsItsPendingAnswers(t *testing.T) {
	p := newPool(20000) // an all-topics answer of some megabytes: the socket does not take it at once
	p.delay.Store(int64(200 * time.Millisecond))
	s := start(t, p, Config{})
	for name, in := range map[string][]byte{"forward": group, "big answer": bytes.Repeat(metadataAll, 3)} {
		c := dial(t, s)
		_, _ = c.Write(in)
		_ = c.CloseWrite()
		time.Sleep(100 * time.Millisecond)
		if name == "forward" {
			expect(t, c, 101, 102, 103, 104)
		} else {
			expect(t, c, 104, 104, 104)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: after the answers: %v, want EOF", name, err)
		}
	}
	eventually(t, "both are gone", func() bool { return s.conns.Load() == 0 })
}

func TestAClientThatDoesNotReadCostsNoCopyAndGetsItsAnswersWhenItDoes(t *testing.T) {
	s := start(t, newPool(20000), Config{})
	c := dial(t, s)
	_ = c.SetReadBuffer(64 << 10)
	_, _ = c.Write(bytes.Repeat(metadataAll, 10))
	_, _ = c.Write(group)
	eventually(t, "its answer is stuck", func() bool {
		var stuck atomic.Bool
		var wg sync.WaitGroup
		for _, l := range *s.loops.Load() {
			wg.Add(1)
			_ = l.gloop.Execute(context.Background(), runnable(func() {
				defer wg.Done()
				if c := l.ages[stalled].head; c != nil {
					stuck.Store(true)
					if n := len(c.rest.Parts(nil, 1<<20)); n > 20000/32+5 {
						t.Errorf("%d parts are kept for it: more than one answer", n)
					}
				}
			}))
		}
		wg.Wait()
		return stuck.Load()
	})
	for range 10 {
		expect(t, c, 104)
	}
	expect(t, c, 101, 102, 103, 104)
}

// onLoops runs f on every loop of s, and returns when all have.
func onLoops(s *Server, f func(*loop)) {
	var wg sync.WaitGroup
	for _, l := range *s.loops.Load() {
		wg.Add(1)
		_ = l.gloop.Execute(context.Background(), runnable(func() { defer wg.Done(); f(l) }))
	}
	wg.Wait()
}

func TestTheKernelHoldsLittleForAClientThatDoesNotReadAndMoreForOneThatDoes(t *testing.T) {
	s := start(t, newPool(60000), Config{Loops: 1})
	c := dial(t, s) // with the usual buffers: the kernel would take megabytes
	_, _ = c.Write(bytes.Repeat(metadataAll, 3))
	unsent, allowed := 0, 0
	stuck := func() (full bool) {
		onLoops(s, func(l *loop) {
			if c := l.ages[stalled].head; c != nil {
				full, allowed = c.full, int(c.unsent)
				unsent, _ = unix.IoctlGetInt(c.g.Fd(), unix.SIOCOUTQNSD)
			}
		})
		return full
	}
	eventually(t, "its answer is stuck", stuck)
	const piece = 64 << 10                                 // what the kernel puts into one buffer
	if allowed > 4*unsentFirst || unsent > allowed+piece { // its own kernel has read some before it was full
		t.Errorf("%d bytes are unsent, %d allowed; want no more than one buffer above that, and that not above %d", unsent, allowed, 4*unsentFirst)
	}
	first := allowed
	expect(t, c, 104)
	time.Sleep(50 * time.Millisecond)
	eventually(t, "the second is stuck", stuck)
	if allowed <= first || allowed > unsentMost {
		t.Errorf("after an answer that was read, %d bytes are allowed", allowed)
	}
	expect(t, c, 104, 104)
}

func TestLargeAnswersOfManyGoOutInTurns(t *testing.T) {
	s := start(t, newPool(20000), Config{Loops: 1})
	var readers sync.WaitGroup
	for range 50 {
		c := dial(t, s)
		_, _ = c.Write(group)
		readers.Go(func() {
			for _, want := range []int32{101, 102, 103, 104} {
				if id, _, err := read(c); err != nil || id != want {
					t.Errorf("answer %d, %v; want %d", id, err, want)
					return
				}
			}
		})
	}
	waits := false
	for end := time.Now().Add(10 * time.Second); !waits && time.Now().Before(end); {
		onLoops(s, func(l *loop) { waits = waits || len(l.pump.ready) > 1 })
	}
	if !waits {
		t.Error("no answer ever waited for its turn")
	}
	readers.Wait()
	onLoops(s, func(l *loop) {
		if n := len(l.pump.ready); n != 0 {
			t.Errorf("%d still wait for a turn", n)
		}
	})
}

type runnable func()

func (r runnable) Run(context.Context) error { r(); return nil }

func TestAClientThatPipelinesAndReadsFastLetsOthersHaveTheirTurn(t *testing.T) {
	s := start(t, newPool(3000), Config{Loops: 1}) // answers of 1.3 MB
	greedy := dial(t, s)
	var got atomic.Int64
	go func() { _, _ = greedy.Write(bytes.Repeat(metadataAll, 2000)) }()
	go func() {
		buf := make([]byte, 1<<20)
		for {
			n, err := greedy.Read(buf)
			if got.Add(int64(n)); err != nil {
				return
			}
		}
	}()
	other := dial(t, s)
	eventually(t, "the greedy one is at it", func() bool { return got.Load() > 10<<20 })
	for range 20 {
		before := got.Load()
		_, _ = other.Write(metadataNone)
		expect(t, other, 102)
		if during := got.Load() - before; during > 64<<20 {
			t.Fatalf("another client's lookup waited while %d MB went to the greedy one", during>>20)
		}
	}
}

func TestDrainAnswersWhatIsInFlightAndResetsNewcomers(t *testing.T) {
	p := newPool(3)
	p.delay.Store(int64(500 * time.Millisecond))
	s := start(t, p, Config{})
	waiting, rested := dial(t, s), dial(t, s)
	_, _ = waiting.Write(append(bytes.Clone(metadataNone), findGroup...))
	_, _ = rested.Write(metadataAll)
	expect(t, rested, 104)
	expect(t, waiting, 102)
	done := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Drain(ctx)
		close(done)
	}()
	if _, err := rested.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection at rest ended with %v, want a FIN", err)
	}
	late, err := net.Dial("tcp", s.Addr())
	if err == nil {
		_, err = late.Read(make([]byte, 1))
		_ = late.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a newcomer ended with %v, want a reset", err)
	}
	expect(t, waiting, 103)
	<-done
	if n := s.conns.Load(); n != 0 {
		t.Errorf("%d connections are left after the drain", n)
	}
}

func TestAListenerThatStopsByItselfIsAnError(t *testing.T) {
	s, err := New(Config{Name: "x", Listen: "127.0.0.1:0", MaxConns: 10}, newPool(1), zaptest.NewLogger(t), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run() }()
	<-s.Booted()
	_ = s.engine.Stop(context.Background()) // as gnet itself does when accept fails, returning nil
	if err := <-ended; !errors.Is(err, errStopped) {
		t.Errorf("Run returned %v", err)
	}
}

func TestEveryAddressMeansBothKindsUnlessItSaysWhich(t *testing.T) {
	for listen, reached := range map[string][2]bool{ // over IPv4, over IPv6
		"0.0.0.0:0": {true, false}, ":0": {true, true}, "[::]:0": {true, true}, "[::1]:0": {false, true},
	} {
		s := start(t, newPool(1), Config{Listen: listen})
		_, port, _ := net.SplitHostPort(s.Addr())
		for i, host := range []string{"127.0.0.1", "::1"} {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if (err == nil) != reached[i] {
				t.Errorf("listening on %s, dialling %s: %v", listen, host, err)
			}
			if err == nil {
				_, _ = c.Write(apiVersions)
				expect(t, c, 101)
				_ = c.Close()
			}
		}
	}
}

func TestAPortInUseIsAnErrorThoughPortsCanBeShared(t *testing.T) {
	s := start(t, newPool(1), Config{})
	if _, err := New(Config{Name: "y", Listen: s.Addr(), MaxConns: 10}, newPool(1), zaptest.NewLogger(t), prometheus.NewRegistry()); err == nil {
		t.Error("a second server took the same port")
	}
	second, err := New(Config{Name: "y", Listen: s.Addr(), MaxConns: 10, SharePort: true}, newPool(1), zaptest.NewLogger(t), prometheus.NewRegistry())
	if err != nil {
		t.Fatalf("sharing the port: %v", err)
	}
	_ = second.probe.Close()
	second.writable.abandon()
}

func TestMetricsPassTheLint(t *testing.T) {
	p := newPool(3)
	s := start(t, p, Config{})
	c := dial(t, s)
	_, _ = c.Write(group)
	expect(t, c, 101, 102, 103, 104)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.metrics)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "kvip_requests_total" {
				var labels string
				for _, l := range m.GetLabel() {
					labels += l.GetValue() + " "
				}
				found[labels] = m.GetCounter().GetValue()
			}
		}
	}
	for _, want := range []string{"Metadata local 1 test ", "ApiVersions local 0 test ", "FindCoordinator forwarded 4 test "} {
		if found[want] == 0 {
			t.Errorf("no %q in %v", want, found)
		}
	}
}
