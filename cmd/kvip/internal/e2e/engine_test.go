//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/events"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/stub"
)

// The lookup engine at sizes that no test machine runs, over a stub whose bytes are a broker's.

func startStub(t *testing.T, cfg stub.Config) (*stub.Cluster, string) {
	t.Helper()
	c, err := stub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, "{type: static, brokers: [" + strings.Join(c.Addrs(), ", ") + "]}"
}

// sleeper is a client with a receive buffer of a few KB, so that what it does not read stays with kvip.
func sleeper(t *testing.T, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, rc syscall.RawConn) (err error) {
		if cerr := rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) }); cerr != nil {
			return cerr
		}
		return err
	}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// lookups does n bootstraps of others, one after the other, and returns the 99th percentile of their times.
func lookups(t *testing.T, addr string, n int) time.Duration {
	t.Helper()
	var took []time.Duration
	for range n {
		begin := time.Now()
		c := dial(t, addr)
		_, _ = c.Write(append(bytes.Clone(apiVersions), metadataNone...))
		for range 2 {
			if _, err := readFrame(c); err != nil {
				t.Fatalf("another client: %v", err)
			}
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took[n*99/100]
}

// othersAreServed allows 1.5 times what it took before, and what a busy machine's scheduler may take: in the short form a
// second, which a loop that does not get round to others exceeds all the same. The benchmark judges the ratio.
func othersAreServed(t *testing.T, before, during time.Duration) {
	t.Helper()
	t.Logf("others' p99: %v before, %v meanwhile", before, during)
	slack := time.Second
	if full {
		slack = 100 * time.Millisecond
	}
	if during > before*3/2+slack {
		t.Errorf("others' p99 is %v, was %v before", during, before)
	}
}

// Row 9: 500 clients ask for 4.8 MB and read nothing.
func TestAnswersOfMegabytesForWhoDoesNotReadCostNoMemory(t *testing.T) {
	_, found := startStub(t, stub.Config{Brokers: 3, Topics: 10_000, Partitions: 10})
	g := start(t, nil, settings{discovery: found})
	ask := kafka.MetadataRequest(12, "sleeper", kafka.Lookup{All: true})
	want, err := exchange(t, g.addr, ask)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // refreshes of megabytes have made the heap what it is then
	before, open := rss(t, g.Pid()), fds(t, g.Pid())
	p99 := lookups(t, g.addr, 200)
	const n = 500
	var conns []net.Conn
	for range n {
		c := sleeper(t, g.addr)
		_, _ = c.Write(ask)
		conns = append(conns, c)
	}
	t.Logf("others' p99 while the kernel takes what fits its buffers: %v", lookups(t, g.addr, 200))
	othersAreServed(t, p99, lookups(t, g.addr, 200))
	grown := rss(t, g.Pid()) - before
	t.Logf("%d clients with %d bytes each to read: resident memory grew by %d KiB", n, len(want), grown>>10)
	if grown > 64<<20 {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
	for _, i := range []int{0, n - 1} { // who resumes has it all
		_ = conns[i].SetDeadline(time.Now().Add(30 * time.Second))
		got, err := readFrame(conns[i])
		const head = 1 << 10 // brokers and controller differ from answer to answer
		if err != nil || len(got) != len(want) || !bytes.Equal(got[head:], want[head:]) {
			t.Fatalf("who resumes gets %d bytes of %d: %v", len(got), len(want), err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, 10*time.Second, "descriptors are back", func() bool { return fds(t, g.Pid()) <= open+8 })
}

// BL-08: 100 clients send 2,000 lookups of 5,000 partitions each, and read nothing.
func TestPipelinesOfWhoDoesNotReadAreServedWhenTheyDo(t *testing.T) {
	_, found := startStub(t, stub.Config{Brokers: 3, Topics: 500, Partitions: 10})
	g := start(t, nil, settings{discovery: found})
	const clients, each = 100, 2000
	one := kafka.MetadataRequest(12, "sleeper", kafka.Lookup{All: true})
	var pipeline []byte
	for i := range each {
		kafka.SetCorrelation(one, int32(i))
		pipeline = append(pipeline, one...)
	}
	want, err := exchange(t, g.addr, one)
	if err != nil {
		t.Fatal(err)
	}
	before := rss(t, g.Pid())
	p99 := lookups(t, g.addr, 200)
	var conns []net.Conn
	for range clients {
		c := sleeper(t, g.addr)
		_ = c.SetDeadline(time.Now().Add(60 * time.Second))
		if _, err := c.Write(pipeline); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	othersAreServed(t, p99, lookups(t, g.addr, 200))
	grown := rss(t, g.Pid()) - before
	t.Logf("resident memory grew by %d KiB", grown>>10)
	if grown > 100<<20 {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
	resumed := conns[clients/2]
	_ = resumed.(*net.TCPConn).SetReadBuffer(1 << 20)
	frame := make([]byte, len(want))
	for i := range each {
		if _, err := io.ReadFull(resumed, frame); err != nil {
			t.Fatalf("answer %d of %d: %v", i, each, err)
		}
		if id := binary.BigEndian.Uint32(frame[4:]); int(id) != i || !bytes.Equal(frame[1<<10:], want[1<<10:]) {
			t.Fatalf("answer %d has the id %d, or other bytes", i, id)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, 20*time.Second, "resident memory is back", func() bool { return rss(t, g.Pid()) < before+32<<20 })
}

// Row 10: a byte a second is as good as none.
func TestWhoReadsAByteASecondIsEndedAsStalled(t *testing.T) {
	_, found := startStub(t, stub.Config{Brokers: 3, Topics: 10_000, Partitions: 10})
	g := start(t, nil, settings{discovery: found, vip: "    limits: {stalled: 3s}"})
	c := sleeper(t, g.addr)
	_, _ = c.Write(kafka.MetadataRequest(12, "sleeper", kafka.Lookup{All: true}))
	begin := time.Now()
	eventually(t, 15*time.Second, "it is closed as stalled", func() bool {
		if time.Since(begin) > time.Second {
			_, _ = c.Read(make([]byte, 1))
			begin = time.Now()
		}
		return g.closed(t, "stalled") == 1
	})
	if err := bootstrap(g.addr, time.Second); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// Row 7: 60 KB of a frame of 1 MB, from thousands.
func TestHalvesOfFramesOfThousandsAreBoundedTogether(t *testing.T) {
	_, found := startStub(t, stub.Config{Brokers: 3, Topics: 10, Partitions: 3})
	g := start(t, nil, settings{discovery: found, vip: "    limits: {buffered_bytes: 16MiB, frame: 60s}"})
	before, open := rss(t, g.Pid()), fds(t, g.Pid())
	half := append(binary.BigEndian.AppendUint32(nil, 1<<20), 0, 3, 0, 12)
	half = append(half, bytes.Repeat([]byte{'x'}, 60_000)...)
	const n = 3000
	var conns []net.Conn
	for range n {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		conns = append(conns, c)
		_, _ = c.Write(half)
	}
	grown := rss(t, g.Pid()) - before
	t.Logf("%d halves of 60 KB: resident memory grew by %d MiB, %d were closed for it", n, grown>>20, g.closed(t, "buffered"))
	if grown > 64<<20 || g.closed(t, "buffered") < n/2 {
		t.Errorf("resident memory grew by %d MiB, closes %v", grown>>20, g.status(t).VIPs[0].Closed)
	}
	if err := bootstrap(g.addr, time.Second); err != nil {
		t.Errorf("another client: %v", err)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, 10*time.Second, "descriptors are back", func() bool { return fds(t, g.Pid()) <= open+8 })
}

// Rows 17 to 20: counts that promise more than there is, and more than anybody needs.
func TestCountsThatPromiseTooMuchCostNothing(t *testing.T) {
	_, found := startStub(t, stub.Config{Brokers: 3, Topics: 10, Partitions: 3})
	g := start(t, nil, settings{discovery: found})
	request := func(version int16, rest ...[]byte) []byte {
		b := append([]byte{0, 0, 0, 0, 0, 3, 0, byte(version), 0, 0, 0, 7, 0, 1, 't'}, bytes.Join(rest, nil)...)
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		return b
	}
	tags := binary.AppendUvarint(nil, 250_000)
	for i := range 250_000 {
		tags = append(binary.AppendUvarint(tags, uint64(i)), 0)
	}
	before := rss(t, g.Pid())
	for name, c := range map[string]struct {
		in     []byte
		reason string // empty: forwarded, a broker answers
	}{
		"row 17: 250,000 tags in the header":        {request(12, tags, []byte{0, 1, 0, 0}), "header"},
		"row 17: 250,000 tags in the body":          {request(12, []byte{0, 0, 1, 0}, tags), "body"},
		"row 18: a varint without an end":           {request(12, bytes.Repeat([]byte{0xff}, 10)), "header"},
		"row 18: a count without an end":            {request(12, []byte{0}, bytes.Repeat([]byte{0xff}, 10)), "body"},
		"row 19: 2^20 topics in no bytes":           {request(1, []byte{0, 0x10, 0, 0}), "body"},
		"row 19: 2^31-1 topics, a compact count":    {request(12, []byte{0, 0x80, 0x80, 0x80, 0x80, 0x08, 0}), "body"},
		"row 20: 500,000 empty names in a megabyte": {request(1, []byte{0, 7, 0xa1, 0x20}, make([]byte, 1_000_000)), ""},
	} {
		was := g.status(t).VIPs[0].Closed[c.reason]
		begin := time.Now()
		if c.reason == "" {
			if frame, err := exchange(t, g.addr, c.in); err != nil || len(frame) < 1_000_000 {
				t.Errorf("%s: %d bytes, %v", name, len(frame), err)
			}
		} else if out, _, _ := closes(t, g.addr, c.in); len(out) != 0 || g.closed(t, c.reason) != was+1 {
			t.Errorf("%s: %d bytes back, not closed as %s: %v", name, len(out), c.reason, g.status(t).VIPs[0].Closed)
		}
		t.Logf("%s: %v", name, time.Since(begin))
		if err := bootstrap(g.addr, time.Second); err != nil {
			t.Errorf("%s: another client: %v", name, err)
		}
	}
	if grown := rss(t, g.Pid()) - before; grown > 64<<20 {
		t.Errorf("resident memory grew by %d MiB", grown>>20)
	}
}

// BL-16: a broker dies, and everybody asks. KVIP_FULL: 1,000 lookups from each of 100 clients.
func TestABurstAfterABrokersDeathDoesNotReachTheOthers(t *testing.T) {
	c, found := startStub(t, stub.Config{Brokers: 4, Topics: 4, Partitions: 1000, Lag: 100 * time.Millisecond})
	g := start(t, nil, settings{discovery: found})
	const clients = 100
	each := 200
	if os.Getenv("KVIP_FULL") != "" {
		each = 1000
	}
	all, none, named := c.Asked.All.Load(), c.Asked.None.Load(), c.Asked.Named.Load()
	began := time.Now()
	c.Lose(0)
	var fresh atomic.Int64 // when the new epoch was seen first
	var unknown atomic.Int64
	times := make([][]time.Duration, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			times[i] = burst(t, g.addr, i, each, began, &fresh, &unknown)
		})
	}
	wg.Wait()
	took := time.Since(began)
	eventually(t, 2*time.Second, "the new leader is told", func() bool {
		var m kafka.Metadata
		frame, err := exchange(t, g.addr, kafka.MetadataRequest(12, "late", kafka.Lookup{Topics: []string{stub.TopicName(0)}}))
		if err != nil {
			return false
		}
		_, body, err := kafka.Header(kafka.KeyMetadata, 12, frame[4:])
		return err == nil && m.Decode(12, body) == nil && m.Topics[0].Partitions[0].LeaderEpoch == c.Epoch(0, 0)
	})
	known := slices.Concat(times...)
	slices.Sort(known)
	if len(known) == 0 {
		t.Fatal("nothing was answered")
	}
	p99 := known[len(known)*99/100]
	all, none, named = c.Asked.All.Load()-all, c.Asked.None.Load()-none, c.Asked.Named.Load()-named
	t.Logf("%d lookups in %v, p99 %v; brokers got %d for all topics, %d for none, %d for %d that no topic is named for; the new epoch was told after %v",
		len(known), took, p99, all, none, named, unknown.Load(), time.Duration(fresh.Load()))
	seconds := took.Seconds() + 1
	if float64(all) > 10*seconds || float64(none) > 10*seconds || named > uint64(unknown.Load()) {
		t.Errorf("brokers got %d, %d and %d requests in %.1f s", all, none, named, seconds)
	}
	most := time.Second // on a machine that does something else, too
	if each == 1000 {
		most = 50 * time.Millisecond
	}
	if p99 > most {
		t.Errorf("p99 %v", p99)
	}
}

// burst is one client's lookups, one in flight; every twentieth for a topic that does not exist. It returns how long those
// for a known one took.
func burst(t *testing.T, addr string, client, n int, began time.Time, fresh, unknown *atomic.Int64) (took []time.Duration) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	// Judging a thousand partitions costs more than telling of them: a tenth of the clients does it.
	judge, memory := check.New(check.Expect{ClusterID: stub.ClusterID, TopicErrors: true}), check.Memory{}
	judges := client%10 == 3
	var m kafka.Metadata
	version := []int16{4, 7, 9, 12}[client%4]
	for i := range n {
		topic := stub.TopicName(client % 4)
		ghost := i%20 == 19
		if ghost {
			topic = fmt.Sprintf("ghost-%d", i)
			unknown.Add(1)
		}
		begin := time.Now()
		if _, err := c.Write(kafka.MetadataRequest(version, "burst", kafka.Lookup{Topics: []string{topic}})); err != nil {
			t.Error(err)
			return took
		}
		frame, err := readFrame(c)
		if err != nil {
			t.Errorf("client %d, lookup %d of %s: %v", client, i, topic, err)
			return took
		}
		if !ghost {
			took = append(took, time.Since(begin))
		}
		if !judges {
			continue
		}
		_, body, err := kafka.Header(kafka.KeyMetadata, version, frame[4:])
		if err != nil {
			t.Error(err)
			return took
		}
		view := judge.Metadata(version, 1, body)
		why, detail := view.Fault, view.Detail
		if why == failure.None {
			why, detail = judge.Accept(&memory, view)
		}
		if why != failure.None {
			t.Errorf("client %d, lookup %d of %s: %v %s", client, i, topic, why, detail)
			return took
		}
		if !ghost && fresh.Load() == 0 && m.Decode(version, body) == nil && slices.ContainsFunc(m.Topics[0].Partitions, moved) {
			fresh.CompareAndSwap(0, int64(time.Since(began)))
		}
	}
	return took
}

// moved says that a partition of the stub has another leader than at its start.
func moved(p kafka.Partition) bool { return p.LeaderEpoch > 5 }

// All preferred leaders are elected and all partitions reassigned under load: no answer goes back behind an earlier one,
// and new leaders are told within 2 s.
func TestElectionsAndReassignmentsNeverLookOlder(t *testing.T) {
	k, consul := sharedLab(t)
	g := start(t, consul, settings{})
	ctx, stop := context.WithCancel(within(t, time.Minute))
	var wg sync.WaitGroup
	var asked atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			judge, memory := check.New(check.Expect{ClusterID: k.ClusterID()}), check.Memory{}
			version := []int16{7, 9, 12, 13}[i%4]
			c := dial(t, g.addr)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			for ctx.Err() == nil {
				_, _ = c.Write(kafka.MetadataRequest(version, "watch", kafka.Lookup{All: true}))
				frame, err := readFrame(c)
				if err != nil {
					t.Error(err)
					return
				}
				_, body, _ := kafka.Header(kafka.KeyMetadata, version, frame[4:])
				view := judge.Metadata(version, -1, body)
				why, detail := view.Fault, view.Detail
				if why == failure.None {
					why, detail = judge.Accept(&memory, view)
				}
				if why != failure.None {
					t.Errorf("v%d: %v %s", version, why, detail)
					return
				}
				asked.Add(1)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	for _, what := range []string{"reassign_all", "elect_leaders", "reassign_all", "elect_leaders"} {
		f, err := events.Parse(fmt.Appendf(nil, "events: [{at: 0s, %s: %q}]", what, k.Node(0).Addr()))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, 20*time.Second, what+" is done", func() bool { // a leader is elected once its replica has moved
			done := f.Run(ctx, time.Now())
			t.Logf("%s: %s %v", what, done[0].Detail, done[0].Err)
			return done[0].Err == nil
		})
		begin, settled := time.Now(), time.Now()
		last := ""
		eventually(t, 20*time.Second, "the VIP tells what the brokers tell", func() bool {
			truth := leaders(t, k.Node(1).Addr())
			if truth != last { // it goes on moving
				last, settled = truth, time.Now()
			}
			return leaders(t, g.addr) == truth
		})
		late := time.Since(settled)
		t.Logf("%s: told %v after the brokers' last change, %v after the call", what, late, time.Since(begin))
		if late > 2*time.Second {
			t.Errorf("%s: new leaders were told after %v", what, late)
		}
	}
	stop()
	wg.Wait()
	if asked.Load() < 100 {
		t.Errorf("only %d answers were judged", asked.Load())
	}
}

// leaders says who leads what.
func leaders(t *testing.T, addr string) string {
	t.Helper()
	frame, err := exchange(t, addr, kafka.MetadataRequest(12, "leaders", kafka.Lookup{All: true}))
	if err != nil {
		t.Fatal(err)
	}
	var m kafka.Metadata
	_, body, _ := kafka.Header(kafka.KeyMetadata, 12, frame[4:])
	if err := m.Decode(12, body); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, topic := range m.Topics {
		for _, p := range topic.Partitions {
			all = append(all, fmt.Sprint(string(topic.Name), p.Index, p.Leader, p.LeaderEpoch))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
