package front

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"
)

func TestDeadlinesEndConnectionsByName(t *testing.T) {
	p := newPool(20000)
	s := start(t, p, Config{Limits: Limits{
		FirstByte: 300 * time.Millisecond, Frame: 300 * time.Millisecond, Idle: 500 * time.Millisecond, Stalled: 300 * time.Millisecond,
	}})
	for reason, c := range map[string]struct {
		in   []byte
		drip bool
		read int
	}{
		"first_byte": {}, "frame": {in: group[:9]}, "idle": {in: apiVersions, read: 1}, "stalled": {in: bytes.Repeat(metadataAll, 20)},
	} {
		before := s.closedFor(reason)
		conn := dial(t, s)
		_ = conn.SetReadBuffer(4 << 10)
		_, _ = conn.Write(c.in)
		for range c.read {
			_, _, _ = read(conn)
		}
		eventually(t, "closed for "+reason, func() bool { return s.closedFor(reason) == before+1 })
	}
	// A frame that trickles in is not kept alive by its bytes.
	c := dial(t, s)
	begin, before := time.Now(), s.closedFor("frame")
	for i := 0; s.closedFor("frame") == before && time.Since(begin) < 5*time.Second; i = min(i+1, len(metadataAll)-2) {
		_, _ = c.Write(metadataAll[i : i+1])
		time.Sleep(40 * time.Millisecond)
	}
	if d := time.Since(begin); d > 2*time.Second {
		t.Errorf("a trickling frame lived for %v", d)
	}
	eventually(t, "all are gone", func() bool { return s.conns.Load() == 0 })
}

func TestAFullTableMakesRoomWithoutCuttingWhoIsWaiting(t *testing.T) {
	p := newPool(3)
	p.delay.Store(int64(time.Second))
	s := start(t, p, Config{MaxConns: 20, Loops: 1})
	waiting := dial(t, s)
	_, _ = waiting.Write(findGroup)
	rested := dial(t, s)
	_, _ = rested.Write(metadataAll)
	expect(t, rested, 104)
	eventually(t, "both are in", func() bool { return s.conns.Load() == 2 })
	for range 40 {
		if c, err := net.Dial("tcp", s.Addr()); err == nil { // a reset can come before connect returns
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	eventually(t, "the one at rest is evicted", func() bool { return s.closedFor("evicted") >= 1 })
	if _, err := rested.Read(make([]byte, 1)); err == nil {
		t.Error("the connection at rest is still open")
	}
	time.Sleep(DefaultLimits().SilentGrace + 50*time.Millisecond)
	for range 3 {
		c := dial(t, s)
		_, _ = c.Write(append(bytes.Clone(apiVersions), metadataAll...))
		expect(t, c, 101, 104)
	}
	expect(t, waiting, 103)
	if n := s.conns.Load(); n > 20 {
		t.Errorf("%d connections, the cap is 20", n)
	}
	if s.closedFor("full") == 0 {
		t.Error("nobody was turned away, though silent connections were too young to evict")
	}
}

func TestHalvesOfFramesAreBoundedAllTogether(t *testing.T) {
	s := start(t, newPool(3), Config{MaxConns: 500, Loops: 2, Limits: Limits{BufferedBytes: 1 << 20, Frame: time.Minute}})
	half := make([]byte, 60<<10)
	binary.BigEndian.PutUint32(half, 1<<20)
	copy(half[4:], metadataNone[4:])
	for range 100 { // 6 MB in all
		_, _ = dial(t, s).Write(half)
	}
	eventually(t, "most of them are ended", func() bool { return s.closedFor("buffered") >= 80 })
	eventually(t, "the rest is within the budget", func() bool { return s.buffered.Load() <= 1<<20 })
	c := dial(t, s)
	_, _ = c.Write(metadataAll)
	expect(t, c, 104)
}
