//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/protocol/answer/answertest"
)

// The names of these tests are the rows of the list of hostile inputs that the gateway has to survive: the process lives,
// other clients are served, memory stays bounded, descriptors come back, and the close is counted by its reason.

var (
	apiVersions  = unhex("0000000b0012000000000065000174")                 // correlation id 101
	metadataNone = unhex("0000000f000300010000006600017400000000")         // 102
	findGroup    = unhex("00000013000a0004000000670001740000020467727000") // 103, forwarded
	metadataAll  = unhex("0000000f0003000100000068000174ffffffff")         // 104
)

// bootstrap does what a client does first, and fails unless it is answered in time.
func bootstrap(addr string, timeout time.Duration) error {
	d := net.Dialer{Timeout: timeout}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write(append(bytes.Clone(apiVersions), metadataAll...)); err != nil {
		return err
	}
	for range 2 {
		if _, err := readFrame(c); err != nil {
			return err
		}
	}
	return nil
}

// closes sends bytes and returns what came back before the close, and how long that took.
func closes(t *testing.T, addr string, in []byte) (out []byte, after time.Duration, err error) {
	t.Helper()
	c := dial(t, addr)
	defer c.Close()
	begin := time.Now()
	_, _ = c.Write(in)
	out, err = io.ReadAll(c)
	return out, time.Since(begin), err
}

// rss is a process's resident memory in bytes, fds its number of open descriptors.
func rss(t *testing.T, pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	_, _ = fmt.Sscan(string(b), &size, &resident)
	return resident * os.Getpagesize()
}

func fds(t *testing.T, pid int) int {
	es, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

// BL-05, and rows 1, 2, 11, 13-15: bytes that are not Kafka, or not a request that a broker serves.
func TestBytesThatAreNotARequestCloseWithoutAWord(t *testing.T) {
	k, consul := sharedLab(t)
	g := start(t, consul, settings{})
	valid := metadataNone
	for name, c := range map[string]struct {
		in     []byte
		reason string
	}{
		"TLS hello":         {append(unhex("1603010200010001fc0303"), bytes.Repeat([]byte{0xaa}, 32)...), "tls"},
		"TLS alert":         {unhex("15030300020250"), "tls"},
		"HTTP HEAD":         {[]byte("HEAD / HTTP/1.1\r\n\r\n"), "http"},
		"HTTP GET":          {[]byte("GET /health HTTP/1.1\r\n\r\n"), "http"},
		"PROXY v2":          {append(unhex("0d0a0d0a000d0a515549540a2111000c0a0000050a00000ac3542384"), valid...), "proxy"},
		"PROXY v1":          {append([]byte("PROXY TCP4 10.0.0.5 10.0.0.10 50004 9092\r\n"), valid...), "proxy"},
		"SSH":               {[]byte("SSH-2.0-OpenSSH_9.2\r\n"), "ssh"},
		"length 0x7fffffff": {append(unhex("7fffffff"), valid...), "size"},
		"length -1":         {unhex("ffffffff"), "size"},
		"length 0":          {append(unhex("00000000"), valid...), "size"},
		"length 2":          {unhex("000000020012"), "size"},
		"length 7":          {unhex("0000000700120000000000"), "size"},
		"unknown key":       {unhex("0000000b03e7000000000007000174"), "key"},
		"negative key":      {unhex("0000000bfff6000000000007000174"), "key"},
		"Metadata v14":      {unhex("000000100003000e000000060001740000000000"), "version"},
		"Metadata v-1":      {unhex("0000000f0003ffff0000006600017400000000"), "version"},
		"one short":         {unhex("0000000e0003000100000066000174000000"), "body"},
		"2^32-1 tags":       {unhex("000000140012000400000002ffffffffffff0f00000000000000"), "header"},
		"2^31-1 topics":     {unhex("0000000f00030001000000660001747fffffff"), "body"},
	} {
		before := g.status(t).VIPs[0].Closed
		out, after, _ := closes(t, g.addr, c.in)
		if len(out) != 0 || after > 100*time.Millisecond {
			t.Errorf("%s: %d bytes back, closed after %v", name, len(out), after)
		}
		if now := g.closed(t, c.reason); now != before[c.reason]+1 {
			t.Errorf("%s: not counted as %s: %v", name, c.reason, g.status(t).VIPs[0].Closed)
		}
		if err := bootstrap(g.addr, time.Second); err != nil {
			t.Errorf("%s: another client: %v", name, err)
		}
	}
	for _, n := range k.Nodes() {
		if log, _ := os.ReadFile(n.LogPath()); strings.Contains(string(log), "InvalidReceive") || strings.Contains(string(log), "InvalidRequest") {
			t.Errorf("a broker's log has something to say:%s", n.LogTail())
		}
	}
	// Row 13: above the maximum ApiVersions is answered at v0, and the connection goes on.
	for _, addr := range []string{k.Node(0).Addr(), g.addr} {
		c := dial(t, addr)
		for _, in := range []string{"0000000c 0012 0063 00000065 0001 74 00", "0000000b 0012 ffff 00000065 0001 74"} {
			_, _ = c.Write(unhex(in))
			if got, err := readFrame(c); err != nil || !bytes.Equal(got, unhex("00000010 00000065 0023 00000001 0012 0000 0004")) {
				t.Errorf("%s: ApiVersions %s: %x %v", addr, in, got, err)
			}
		}
	}
}

// Row 16.
func TestProduceAndFetchNeverReachABroker(t *testing.T) {
	_, consul := sharedLab(t)
	g := start(t, consul, settings{})
	p := kmsg.NewPtrProduceRequest()
	p.Version, p.Acks = 9, 1
	pt := kmsg.NewProduceRequestTopic()
	pt.Topic, pt.Partitions = topics[0], []kmsg.ProduceRequestTopicPartition{kmsg.NewProduceRequestTopicPartition()}
	p.Topics = append(p.Topics, pt)
	frame, err := exchange(t, g.addr, answertest.Case{Request: p}.Frame(1))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := answertest.Decode(p, frame)
	if err != nil || resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode != 6 {
		t.Errorf("Produce: %+v %v, want error 6", resp, err)
	}
	p.Acks = 0
	if out, _, _ := closes(t, g.addr, answertest.Case{Request: p}.Frame(1)); len(out) != 0 || g.closed(t, "acks_zero") != 1 {
		t.Errorf("Produce with acks=0: %d bytes back, closes %v", len(out), g.status(t).VIPs[0].Closed)
	}
}

// Rows 22, 24, 25, 26: odd names, client ids, trailing bytes and correlation ids get the same verdict as at a broker.
func TestOddRequestsGetABrokersVerdict(t *testing.T) {
	k, consul := sharedLab(t)
	g := start(t, consul, settings{})
	header := func(key, version int16, correlationID int32, clientID []byte, body string) []byte {
		b := make([]byte, 4, 64)
		b = binary.BigEndian.AppendUint16(b, uint16(key))
		b = binary.BigEndian.AppendUint16(b, uint16(version))
		b = binary.BigEndian.AppendUint32(b, uint32(correlationID))
		if clientID == nil {
			b = append(b, 0xff, 0xff)
		} else {
			b = append(binary.BigEndian.AppendUint16(b, uint16(len(clientID))), clientID...)
		}
		b = append(b, body...)
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		return b
	}
	name := func(s string) string {
		return "\x00\x00\x00\x01" + string(binary.BigEndian.AppendUint16(nil, uint16(len(s)))) + s + "\x00"
	}
	for what, in := range map[string][]byte{
		"249 characters":        header(3, 4, 1, []byte("t"), name(strings.Repeat("x", 249))),
		"250 characters":        header(3, 4, 1, []byte("t"), name(strings.Repeat("x", 250))),
		"dots":                  header(3, 4, 1, []byte("t"), name("..")),
		"NUL":                   header(3, 4, 1, []byte("t"), name("a\x00b")),
		"invalid UTF-8":         header(3, 4, 1, []byte("t"), name("a\xff\xfeb")),
		"32 KB":                 header(3, 4, 1, []byte("t"), name(strings.Repeat("y", 32000))),
		"empty":                 header(3, 4, 1, []byte("t"), name("")),
		"client id of 32,767":   header(3, 1, 1, bytes.Repeat([]byte("c"), 32767), "\x00\x00\x00\x00"),
		"client id of controls": header(3, 1, 1, []byte("\x00\x1b[31m\n\""), "\x00\x00\x00\x00"),
		"null client id":        header(3, 1, 1, nil, "\x00\x00\x00\x00"),
		"trailing bytes":        header(3, 1, 1, []byte("t"), "\x00\x00\x00\x00trailing"),
		"correlation id -1":     header(3, 1, -1, []byte("t"), "\x00\x00\x00\x00"),
		"correlation id min":    header(3, 1, -1<<31, []byte("t"), "\x00\x00\x00\x00"),
		"one byte short":        header(3, 1, 1, []byte("t"), "\x00\x00\x00"),
		"null array in v0":      header(3, 0, 1, []byte("t"), "\xff\xff\xff\xff"),
		"null array in v1":      header(3, 1, 1, []byte("t"), "\xff\xff\xff\xff"),
	} {
		var verdicts [2]string
		for i, addr := range []string{k.Node(0).Addr(), g.addr} {
			c := dial(t, addr)
			// A second request on the same connection shows that nothing spilled over.
			_, _ = c.Write(append(bytes.Clone(in), metadataNone...))
			for range 2 {
				frame, err := readFrame(c)
				if err != nil {
					verdicts[i] += " closed"
					break
				}
				if len(frame) > 8 {
					q := kmsg.NewPtrMetadataRequest()
					q.Version = int16(in[7])
					if bytes.Equal(frame[4:8], metadataNone[8:12]) {
						q.Version = 1
					}
					resp, err := answertest.Decode(q, frame)
					if err != nil {
						t.Fatalf("%s: %s: %v", what, addr, err)
					}
					r := resp.(*kmsg.MetadataResponse)
					verdicts[i] += fmt.Sprintf(" %x:%d topics", frame[4:8], len(r.Topics))
					for _, tp := range r.Topics {
						if tp.ErrorCode != 0 {
							verdicts[i] += fmt.Sprintf(" error %d %.20q", tp.ErrorCode, *tp.Topic)
						}
					}
				}
			}
			_ = c.Close()
		}
		if verdicts[0] != verdicts[1] {
			t.Errorf("%s: a broker says%s, kvip says%s", what, verdicts[0], verdicts[1])
		}
	}
	log, _ := os.ReadFile(g.LogPath())
	if bytes.Contains(log, []byte("\x1b[31m")) {
		t.Error("a client's bytes are in the log raw")
	}
}

// Rows 3 and 4: thousands of connections that send a length and then nothing, or a byte now and then.
func TestThousandsOfUnfinishedFramesCostLittleAndEnd(t *testing.T) {
	_, consul := sharedLab(t)
	g := start(t, consul, settings{vip: "    limits: {frame: 2s}"})
	const n = 8000
	before, open := rss(t, g.Pid()), fds(t, g.Pid())
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	begin := time.Now()
	for range n {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		_, _ = c.Write([]byte{0, 0, 1, 0, 0})
	}
	grown := rss(t, g.Pid()) - before
	t.Logf("%d unfinished frames in %v: %d bytes of memory each", n, time.Since(begin), grown/n)
	if grown/n > 6<<10 {
		t.Errorf("%d bytes of memory for an unfinished frame", grown/n)
	}
	if err := bootstrap(g.addr, time.Second); err != nil {
		t.Errorf("another client meanwhile: %v", err)
	}
	for i := 0; i < n; i += 4 { // a quarter drips
		_, _ = conns[i].Write([]byte{3})
	}
	eventually(t, 10*time.Second, "all are closed at their frame's deadline", func() bool { return g.closed(t, "frame") >= n })
	eventually(t, 5*time.Second, "their descriptors are back", func() bool { return fds(t, g.Pid()) <= open+8 })
}

// Row 8.
func TestTenThousandPipelinedLookupsInOneWrite(t *testing.T) {
	_, consul := sharedLab(t)
	g := start(t, consul, settings{})
	const n = 10000
	var in []byte
	for i := range n {
		q := bytes.Clone(metadataNone)
		binary.BigEndian.PutUint32(q[8:], uint32(i))
		in = append(in, q...)
	}
	c := dial(t, g.addr)
	go func() { _, _ = c.Write(in) }()
	for i := range n {
		frame, err := readFrame(c)
		if err != nil || binary.BigEndian.Uint32(frame[4:]) != uint32(i) {
			t.Fatalf("answer %d: %x %v", i, frame[:min(len(frame), 8)], err)
		}
	}
}

// BL-07 against real brokers: a big request, and everything half-closed.
func TestPipelinesAgainstRealBrokers(t *testing.T) {
	k, consul := sharedLab(t)
	g := start(t, consul, settings{})
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.AllowAutoTopicCreation = 4, false
	for i := range 20000 {
		q.Topics = append(q.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(fmt.Sprintf("ghost-%07d", i))})
	}
	big := answertest.Case{Request: q}.Frame(105)
	group := bytes.Join([][]byte{apiVersions, metadataNone, findGroup, metadataAll}, nil)
	for _, addr := range []string{k.Node(0).Addr(), g.addr} {
		c := dial(t, addr)
		go func() { _, _ = c.Write(append(bytes.Repeat(group, 50), big...)); _ = c.(*net.TCPConn).CloseWrite() }()
		var ids []uint32
		for {
			frame, err := readFrame(c)
			if err != nil {
				break
			}
			ids = append(ids, binary.BigEndian.Uint32(frame[4:]))
		}
		// A broker may drop what was still queued when it sees the end; kvip answers all that came before it.
		for i, id := range ids {
			if want := uint32(101 + i%4); i < 200 && id != want {
				t.Fatalf("%s: answer %d has id %d, want %d", addr, i, id, want)
			}
		}
		if addr == g.addr && (len(ids) != 201 || ids[200] != 105) {
			t.Errorf("%d answers through the VIP, want 201", len(ids))
		}
	}
}

// Row 21 is TestEveryAnswerIsABrokersFieldByField. Row 6, and the flood: with 256 descriptors.
func TestAFloodAtTheDescriptorLimitIsSurvived(t *testing.T) {
	_, consul := sharedLab(t)
	g := start(t, consul, settings{prefix: []string{"sh", "-c", `ulimit -n 256; exec "$@"`, "sh"}})
	most := g.status(t).VIPs[0].Cap
	t.Logf("%d connections of 256 descriptors", most)

	// Those that are here before the flood: one at the start of its bootstrap, one that keeps asking a broker.
	booting, waiting := dial(t, g.addr), dial(t, g.addr)
	_, _ = booting.Write(apiVersions)
	if _, err := readFrame(booting); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var dialed, refused, admitted, asked atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			_, _ = waiting.Write(findGroup)
			if frame, err := readFrame(waiting); err != nil || binary.BigEndian.Uint32(frame[4:]) != 103 {
				t.Errorf("who was waiting for an answer: %v", err)
				return
			}
			asked.Add(1)
		}
	})
	wg.Go(func() {
		time.Sleep(time.Second)
		_, _ = booting.Write(metadataAll)
		if _, err := readFrame(booting); err != nil {
			t.Errorf("who was bootstrapping: %v", err)
		}
	})
	flood(ctx, &wg, g.addr, &dialed, &refused)
	for ctx.Err() == nil {
		if bootstrap(g.addr, time.Second) == nil {
			admitted.Add(1)
		}
		time.Sleep(50 * time.Millisecond)
	}
	ended := time.Now()
	var err error
	for time.Since(ended) < time.Second {
		if err = bootstrap(g.addr, time.Second); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("no bootstrap within a second of the flood's end: %v", err)
	}
	after := time.Since(ended)
	wg.Wait()
	if n := fds(t, g.Pid()); n >= 256 {
		t.Errorf("%d descriptors open", n)
	}
	s := g.status(t).VIPs[0]
	t.Logf("%d connects in 10 s, %d of them reset at once; %d forwards answered meanwhile, %d of 200 bootstraps admitted; first bootstrap %v after the end; closes %v",
		dialed.Load(), refused.Load(), asked.Load(), admitted.Load(), after, s.Closed)
	if dialed.Load() < 18000 {
		t.Errorf("the flood had %d connects, want 20,000", dialed.Load())
	}
	select {
	case <-g.Exited():
		t.Error("kvip has ended")
	default:
	}
	for range 20 {
		if err := bootstrap(g.addr, time.Second); err != nil {
			t.Errorf("after the flood: %v", err)
		}
	}
}

// flood opens 2,000 connections a second that say nothing, from 250 addresses, each kept until it is cut or 2 s old.
func flood(ctx context.Context, wg *sync.WaitGroup, addr string, dialed, refused *atomic.Int64) {
	const workers = 20
	for w := range workers {
		wg.Go(func() {
			tick := time.NewTicker(workers * time.Second / 2000)
			defer tick.Stop()
			for i := w; ctx.Err() == nil; i += workers {
				<-tick.C
				d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%250))}}
				c, err := d.Dial("tcp", addr)
				dialed.Add(1)
				if err != nil {
					refused.Add(1)
					continue
				}
				_ = c.(*net.TCPConn).SetLinger(0)
				wg.Go(func() {
					defer c.Close()
					_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
					if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
						refused.Add(1)
					}
				})
			}
		})
	}
}
