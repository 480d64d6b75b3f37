package backends

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/backends/upstream"
	"github.com/kvip/kvip/protocol/forward"
)

// fakeBroker answers each request with its own name after a delay, or as answer says.
type fakeBroker struct {
	name, rack string
	delay      time.Duration
	refuses    bool
	// hangUp closes the connection instead of answering.
	hangUp   bool
	requests atomic.Int32
}

// switchboard is a forwarder over hand-made brokers, in fake time.
type switchboard struct {
	t       *testing.T
	f       *forwarder
	v       *view
	brokers map[string]*fakeBroker
	nudged  sync.Map
}

func newSwitchboard(t *testing.T, maxConns int, brokers ...*fakeBroker) *switchboard {
	s := &switchboard{t: t, v: &view{sticky: map[string]target{}}, brokers: map[string]*fakeBroker{}}
	up := upstream.New(upstream.Options{MaxConns: maxConns, Dial: s.dial})
	var addrs []string
	for _, b := range brokers {
		s.brokers[b.name] = b
		s.v.targets = append(s.v.targets, target{addr: b.name, rack: b.rack})
		s.v.sticky[b.name] = target{addr: b.name, rack: b.rack}
		addrs = append(addrs, b.name)
	}
	s.v.picker = fixed(0)
	up.Keep(addrs)
	s.f = newForwarder(up, func() *view { return s.v }, func(addr string) { s.nudged.Store(addr, true) })
	t.Cleanup(func() {
		s.f.close()
		up.Close()
		time.Sleep(time.Hour) // the brokers notice
	})
	return s
}

// fixed always picks the same member.
type fixed int

func (f fixed) Pick(uint64) int              { return int(f) }
func (f fixed) Explain(uint64) (int, string) { return int(f), "always the same" }

func (s *switchboard) dial(_ context.Context, addr string) (net.Conn, error) {
	b := s.brokers[addr]
	if b.refuses {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	go func() {
		defer func() { _ = theirs.Close() }()
		for {
			head := make([]byte, 4)
			if _, err := io.ReadFull(theirs, head); err != nil {
				return
			}
			req := make([]byte, binary.BigEndian.Uint32(head))
			if _, err := io.ReadFull(theirs, req); err != nil {
				return
			}
			b.requests.Add(1)
			if b.hangUp {
				return
			}
			time.Sleep(b.delay)
			answer := binary.BigEndian.AppendUint32(nil, uint32(4+len(b.name)))
			answer = append(append(answer, req[4:8]...), b.name...)
			if _, err := theirs.Write(answer); err != nil {
				return
			}
		}
	}()
	return ours, nil
}

// pending is a request that was forwarded.
type pending struct {
	req    *forward.Request
	done   chan forward.Result
	began  time.Time
	cancel context.CancelFunc
}

type option func(*forward.Request)

func read(r *forward.Request)      { r.Retry, r.Timeout = true, time.Second }
func write(r *forward.Request)     { r.Timeout = 5 * time.Second }
func shared(r *forward.Request)    { r.Shared = true }
func stickTo(broker string) option { return func(r *forward.Request) { r.Broker = broker } }
func spread(r *forward.Request)    { r.Spread = true }
func framed(client, body string) option {
	return func(r *forward.Request) {
		correlation := r.Frame[8:12]
		r.Frame = binary.BigEndian.AppendUint32(nil, uint32(10+len(client)+len(body)))
		r.Frame = append(append(r.Frame, 0, 10, 0, 1), correlation...)
		r.Frame = binary.BigEndian.AppendUint16(r.Frame, uint16(len(client)))
		r.Frame = append(append(r.Frame, client...), body...)
	}
}

func (s *switchboard) send(correlation uint32, options ...option) *pending {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	p := &pending{done: make(chan forward.Result, 2), began: time.Now(), cancel: cancel}
	frame := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 10, 0, 10, 0, 1}, correlation)
	p.req = &forward.Request{
		Key: 10, Version: 1, Frame: append(frame, 0, 0), Ctx: ctx, Done: func(r forward.Result) { p.done <- r },
	}
	for _, o := range options {
		o(p.req)
	}
	s.f.forward(p.req)
	return p
}

// got waits for the result and returns it as text with the time that it took.
func (p *pending) got(t *testing.T) (string, time.Duration) {
	t.Helper()
	r := <-p.done
	took := time.Since(p.began)
	synctest.Wait()
	if len(p.done) > 0 {
		t.Error("Done was called twice")
	}
	if r.Err != nil {
		return r.Err.Error(), took
	}
	if diff := cmp.Diff(p.req.Frame[8:12], r.Frame[4:8]); diff != "" {
		t.Errorf("correlation id (-want +got):\n%s", diff)
	}
	return string(r.Frame[8:]) + " by " + r.Broker, took
}

func (p *pending) want(t *testing.T, result string, took time.Duration) {
	t.Helper()
	if got, d := p.got(t); got != result || d != took {
		t.Errorf("got %q after %v, want %q after %v", got, d, result, took)
	}
}

func TestForwards(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		brokers  []*fakeBroker
		options  []option
		want     string
		took     time.Duration
		requests []int32
	}{
		{"a read", []*fakeBroker{{delay: 5 * ms}, {}, {}}, []option{read}, "b0 by b0", 5 * ms, []int32{1, 0, 0}},
		{"a read that sticks", []*fakeBroker{{}, {}, {}}, []option{read, stickTo("b2")}, "b2 by b2", 0, []int32{0, 0, 1}},
		{"a spread read does not stick", []*fakeBroker{{}, {}, {}}, []option{read, stickTo("b2"), spread}, "b0 by b0", 0, []int32{1, 0, 0}},
		{"a read that stuck to one that left", []*fakeBroker{{}, {}, {}}, []option{read, stickTo("gone")}, "b0 by b0", 0, []int32{1, 0, 0}},
		{"a frozen broker: the next of another rack", []*fakeBroker{{rack: "r1", delay: time.Hour}, {rack: "r1"}, {rack: "r2"}},
			[]option{read}, "b2 by b2", 400 * ms, []int32{1, 0, 1}},
		{"a frozen broker, one rack", []*fakeBroker{{rack: "r1", delay: time.Hour}, {rack: "r1"}, {rack: "r1"}},
			[]option{read}, "b1 by b1", 400 * ms, []int32{1, 1, 0}},
		{"a broker that hangs up", []*fakeBroker{{hangUp: true}, {}, {}}, []option{read}, "b1 by b1", 0, []int32{1, 1, 0}},
		{"a broker that refuses", []*fakeBroker{{refuses: true}, {}, {}}, []option{read}, "b1 by b1", 0, []int32{0, 1, 0}},
		{"all frozen: one second in all", []*fakeBroker{{delay: time.Hour}, {delay: time.Hour}, {delay: time.Hour}, {}},
			[]option{read}, forward.ErrDeadline.Error(), 1000 * ms, []int32{1, 1, 1, 0}},
		{"a write is sent once", []*fakeBroker{{hangUp: true}, {}, {}}, []option{write}, "b0: EOF", 0, []int32{1, 0, 0}},
		{"a write has its own time", []*fakeBroker{{delay: time.Hour}, {}, {}}, []option{write}, forward.ErrDeadline.Error(), 5000 * ms, []int32{1, 0, 0}},
		{"a slow write", []*fakeBroker{{delay: 3 * time.Second}, {}, {}}, []option{write}, "b0 by b0", 3000 * ms, []int32{1, 0, 0}},
		{"a write that was not sent goes elsewhere", []*fakeBroker{{refuses: true}, {}, {}}, []option{write}, "b1 by b1", 0, []int32{0, 1, 0}},
		{"nobody there", nil, []option{read}, forward.ErrNoBroker.Error(), 0, nil},
		{"all refuse", []*fakeBroker{{refuses: true}, {refuses: true}}, []option{read}, "b1: connection refused", 0, []int32{0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var brokers []*fakeBroker
				for i, b := range c.brokers {
					brokers = append(brokers, &fakeBroker{
						name: "b" + string(rune('0'+i)), rack: b.rack, delay: b.delay, refuses: b.refuses, hangUp: b.hangUp,
					})
				}
				s := newSwitchboard(t, 4, brokers...)
				s.send(0xfffffff9, c.options...).want(t, c.want, c.took)
				for i, b := range brokers {
					if n := b.requests.Load(); n != c.requests[i] {
						t.Errorf("b%d got %d requests, want %d", i, n, c.requests[i])
					}
				}
			})
		})
	}
}

// What a broker leaves behind goes to all others, in a pool of one rack too, and to one on trial no more than its part.
func TestRetriesAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchboard(t, 4, &fakeBroker{name: "b0", refuses: true}, &fakeBroker{name: "b1"}, &fakeBroker{name: "b2"}, &fakeBroker{name: "b3"})
		var members []policy.Member
		for _, target := range s.v.targets {
			members = append(members, policy.Member{Addr: target.addr, Weight: 1})
		}
		members[3].Part = new(atomic.Int32)
		members[3].Part.Store(100)
		s.v.picker = policy.Build("ring", members, policy.Options{}, nil)
		for i := range 600 {
			client := func(r *forward.Request) { r.Client = uint64(i) * 0x9e3779b97f4a7c15 }
			if r := <-s.send(7, read, stickTo("b0"), client).done; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		for name, want := range map[string][2]int32{"b1": {220, 360}, "b2": {220, 360}, "b3": {1, 60}} {
			if n := s.brokers[name].requests.Load(); n < want[0] || n > want[1] {
				t.Errorf("%s got %d of 600 retries, want %d to %d", name, n, want[0], want[1])
			}
		}
	})
}

// A forward that fails for the network's reasons asks for a probe: nothing that a client's bytes cause does.
func TestATransportErrorAsksForAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchboard(t, 4, &fakeBroker{name: "b0", hangUp: true}, &fakeBroker{name: "b1"})
		s.send(1, read).want(t, "b1 by b1", 0)
		if _, ok := s.nudged.Load("b0"); !ok {
			t.Error("no probe of b0 was asked for")
		}
		if _, ok := s.nudged.Load("b1"); ok {
			t.Error("a probe of b1 was asked for, which answered")
		}
	})
}

func TestAClientThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBroker{name: "b0", delay: 2 * time.Second}
		s := newSwitchboard(t, 4, b)
		p := s.send(1, write)
		time.Sleep(100 * time.Millisecond)
		p.cancel()
		p.want(t, context.Canceled.Error(), 100*time.Millisecond)
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		s.send(2, func(r *forward.Request) { r.Ctx = dead }).want(t, context.Canceled.Error(), 0)
		time.Sleep(2 * time.Second)
		if len(p.done) > 0 {
			t.Error("Done was called again by the answer")
		}
		if n := s.f.active.Load(); n != 0 {
			t.Errorf("%d flights are still under way", n)
		}
	})
}

func TestIdenticalReadsShareOneAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b0, b1 := &fakeBroker{name: "b0", delay: 200 * time.Millisecond}, &fakeBroker{name: "b1"}
		s := newSwitchboard(t, 4, b0, b1)
		first := s.send(1, read, shared, framed("app", "ghost"))
		time.Sleep(50 * time.Millisecond)
		second := s.send(2, read, shared, framed("another client", "ghost"))
		third := s.send(3, read, shared, framed("", "ghost"), stickTo("b1"))
		gone := s.send(4, read, shared, framed("app", "ghost"))
		gone.cancel()
		gone.want(t, context.Canceled.Error(), 0)
		other := s.send(5, read, shared, framed("app", "other"))
		apart := s.send(6, read, framed("app", "ghost"))
		write := s.send(7, write, shared, framed("app", "ghost"))
		first.want(t, "b0 by b0", 200*time.Millisecond)
		second.want(t, "b0 by b0", 150*time.Millisecond)
		third.want(t, "b0 by b1", 150*time.Millisecond) // it goes on sticking to its own
		other.want(t, "b0 by b0", 200*time.Millisecond)
		apart.want(t, "b0 by b0", 200*time.Millisecond)
		write.want(t, "b0 by b0", 200*time.Millisecond)
		if n := b0.requests.Load(); n != 4 {
			t.Errorf("the broker got %d requests, want 4: shared, other, not to be shared, a write", n)
		}
		if n := s.f.shared.Load(); n != 3 {
			t.Errorf("%d shared, want 3", n)
		}
		s.send(8, read, shared, framed("app", "ghost")).want(t, "b0 by b0", 200*time.Millisecond)
		if n := b0.requests.Load(); n != 5 {
			t.Error("an answer was kept after it had come")
		}
	})
}

// The first client's going does not take the answer from those that joined it; when all have gone nothing more is tried.
func TestASharedFlightOutlivesItsFirstClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b0, b1 := &fakeBroker{name: "b0", delay: time.Hour}, &fakeBroker{name: "b1"}
		s := newSwitchboard(t, 4, b0, b1)
		first := s.send(1, read, shared)
		second := s.send(2, read, shared)
		first.cancel()
		second.want(t, "b1 by b1", 400*time.Millisecond)
		a, b := s.send(3, read, shared), s.send(4, read, shared)
		a.cancel()
		b.cancel()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		if n := b1.requests.Load(); n != 1 {
			t.Errorf("a second broker was asked for clients that had gone: %d requests", n)
		}
	})
}

// One that comes when an identical request has been on its way for a whole try gets a try of its own.
func TestALateComerDoesNotJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b0, b1 := &fakeBroker{name: "b0", delay: time.Hour}, &fakeBroker{name: "b1", delay: time.Hour}
		s := newSwitchboard(t, 4, b0, b1)
		first := s.send(1, read, shared)
		time.Sleep(500 * time.Millisecond)
		late := s.send(2, read, shared)
		first.want(t, forward.ErrDeadline.Error(), 800*time.Millisecond)
		late.want(t, forward.ErrDeadline.Error(), 800*time.Millisecond)
	})
}

func TestForwardsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwitchboard(t, 1, &fakeBroker{name: "b0", delay: time.Hour})
		var all []*pending
		for i := range uint32(3000) {
			all = append(all, s.send(i, write))
		}
		synctest.Wait()
		if n := s.f.up.Waiting(); n != maxWaiting {
			t.Errorf("%d wait, want %d", n, maxWaiting)
		}
		busy, late := 0, 0
		for _, p := range all {
			switch got, _ := p.got(t); got {
			case forward.ErrBusy.Error():
				busy++
			case forward.ErrDeadline.Error():
				late++
			default:
				t.Fatal(got)
			}
		}
		if late != maxWaiting+1 || busy != 3000-late {
			t.Errorf("%d late and %d busy, want %d and %d", late, busy, maxWaiting+1, 3000-maxWaiting-1)
		}
	})
}

func TestShareKey(t *testing.T) {
	frame := func(options ...option) []byte {
		r := &forward.Request{Frame: make([]byte, 14)}
		for _, o := range options {
			o(r)
		}
		return r.Frame
	}
	null := frame(framed("", "x"))
	copy(null[12:], []byte{0xff, 0xff})
	version := frame(framed("", "x"))
	version[7] = 9
	short := frame(framed("", "x"))
	short[13] = 200
	base := shareKey(frame(framed("", "x")))
	for name, c := range map[string]struct {
		frame []byte
		same  bool
	}{
		"another client id": {frame(framed("long client id", "x")), true},
		"a null client id":  {null, true},
		"another body":      {frame(framed("", "y")), false},
		"another version":   {version, false},
	} {
		if got := shareKey(c.frame) == base; got != c.same {
			t.Errorf("%s: shares is %v, want %v", name, got, c.same)
		}
	}
	for _, f := range [][]byte{short, {0, 0, 0, 8, 0, 7, 0, 0, 0, 0, 0, 1}} {
		if k := shareKey(f); k != "" {
			t.Errorf("%x may be shared as %x", f, k)
		}
	}
}
