package session

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/forward"
)

// pool is a Pool of one snapshot; forwards are kept until the test answers them, or answered at once.
type pool struct {
	set     *answer.Set
	atOnce  bool
	pending []*forward.Request
}

func (p *pool) Answers(snapshot.Time) *answer.Set { return p.set }

func (p *pool) Forward(r *forward.Request) {
	p.pending = append(p.pending, r)
	if p.atOnce {
		r.Done(reply(r))
	}
}

// reply is an answer whose body tells which request it is for.
func reply(r *forward.Request) forward.Result {
	b := binary.BigEndian.AppendUint32(nil, 8)
	b = append(b, r.Frame[8:12]...)
	b = binary.BigEndian.AppendUint16(b, uint16(r.Key))
	b = binary.BigEndian.AppendUint16(b, uint16(r.Version))
	return forward.Result{Frame: b, Broker: "b1:9092"}
}

func newPool() *pool {
	meta := kmsg.NewMetadataResponse()
	meta.Version, meta.ClusterID, meta.ControllerID = 12, kmsg.StringPtr("A"), 1
	meta.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "b1", Port: 9092}}
	meta.Topics = []kmsg.MetadataResponseTopic{{Topic: kmsg.StringPtr("orders"), Partitions: []kmsg.MetadataResponseTopicPartition{{Leader: 1}}}}
	var reader snapshot.Reader
	cand, fault := reader.Read(snapshot.Encoded{Version: meta.Version, Body: meta.AppendTo(nil)}, nil, true, nil, snapshot.Rules{ClusterID: "A"})
	if fault != nil {
		panic(fault)
	}
	var apis snapshot.APIs
	apis.FinalizedFeaturesEpoch = -1
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		if req := kmsg.RequestForKey(key); req != nil {
			apis.Keys = append(apis.Keys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: req.MaxVersion()})
		}
	}
	return &pool{set: answer.Build(answer.Input{Snapshot: cand.Snapshot, APIs: &apis}, nil)}
}

// driver drives one session as a front does, with an input buffer of its own.
type driver struct {
	t     testing.TB
	pool  *pool
	sess  Session
	in    []byte
	got   []byte
	out   *answer.Out
	tally Tally
	woken int
	now   snapshot.Time
	end   Reason
	last  Step
}

func drive(t testing.TB, p *pool, cfg Config) *driver {
	d := &driver{t: t, pool: p, out: answer.NewOut(1), tally: Tally{Stats: new(Stats)}, now: 1}
	d.sess.Init(&VIP{Config: cfg, Pool: p}, 7, func() { d.woken++ })
	return d
}

func (d *driver) feed(b []byte) {
	d.in = append(d.in, b...)
	d.run()
}

func (d *driver) run() {
	for d.end == ReasonNone {
		if need := d.sess.Need(); need > 0 && len(d.in) < need && !d.sess.Busy() {
			return
		}
		d.out.Reset()
		in := bytes.Clone(d.in) // what is kept of it beyond the call would be overwritten below
		taken, step, reason := d.sess.Serve(in, d.out, &d.tally, d.now)
		for _, p := range d.out.Parts(nil) {
			d.got = append(d.got, p...)
		}
		clear(in)
		d.in = d.in[taken:]
		d.last, d.end = step, reason
		if step == Waiting && d.woken > 0 {
			d.woken--
			continue
		}
		if step != NeedFlush {
			return
		}
	}
}

// answers returns the correlation ids that came out.
func (d *driver) answers() (ids []int32) {
	for b := d.got; len(b) > 0; {
		n := int(binary.BigEndian.Uint32(b)) + 4
		if n > len(b) {
			d.t.Fatalf("%d bytes of an answer of %d", len(b), n)
		}
		ids = append(ids, int32(binary.BigEndian.Uint32(b[4:])))
		b = b[n:]
	}
	return ids
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// group is BL-07's: ApiVersions, Metadata of none, FindCoordinator (forwarded), Metadata of all.
var group = unhex("0000000b0012000000000065000174" + "0000000f000300010000006600017400000000" +
	"00000013000a0004000000670001740000020467727000" + "0000000f0003000100000068000174ffffffff")

func TestAnswersKeepTheOrderOfRequestsHoweverTheBytesArrive(t *testing.T) {
	want := fmt.Sprint([]int32{101, 102, 103, 104})
	for cut := 0; cut <= len(group); cut++ {
		d := drive(t, newPool(), DefaultConfig())
		d.feed(group[:cut])
		d.feed(group[cut:])
		if got := fmt.Sprint(d.answers()); got != "[101 102]" {
			t.Fatalf("cut at %d: answers %s before the broker's", cut, got)
		}
		d.pool.pending[0].Done(reply(d.pool.pending[0]))
		d.run()
		if got := fmt.Sprint(d.answers()); got != want {
			t.Fatalf("cut at %d: answers %s, want %s", cut, got, want)
		}
	}
	p := newPool()
	p.atOnce = true
	d := drive(t, p, DefaultConfig())
	for i := range group {
		d.feed(group[i : i+1])
	}
	if got := fmt.Sprint(d.answers()); got != want {
		t.Fatalf("byte by byte: answers %s, want %s", got, want)
	}
	d = drive(t, p, DefaultConfig())
	d.feed(bytes.Repeat(group, 200))
	if got := len(d.answers()); got != 800 || d.end != ReasonNone {
		t.Fatalf("200 groups back to back: %d answers, end %v", got, d.end)
	}
}

func TestARequestIsForwardedAsItCame(t *testing.T) {
	d := drive(t, newPool(), DefaultConfig())
	find := group[34:57]
	d.feed(find)
	r := d.pool.pending[0]
	if !bytes.Equal(r.Frame, find) || r.Key != 10 || r.Version != 4 || !r.Retry || r.Broker != "" {
		t.Fatalf("forwarded %x as %+v", r.Frame, r)
	}
	r.Done(reply(r))
	d.run()
	d.feed(find)
	if got := d.pool.pending[1].Broker; got != "b1:9092" {
		t.Errorf("the second forward goes to %q, not to the broker that answered the first", got)
	}
	d.sess.Close()
	if d.pool.pending[1].Ctx.Err() == nil {
		t.Error("the client has gone, but its forward goes on")
	}
}

func metadata(version int16, create bool, topics ...string) []byte {
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.AllowAutoTopicCreation = version, create
	q.Topics = []kmsg.MetadataRequestTopic{}
	for _, name := range topics {
		q.Topics = append(q.Topics, kmsg.MetadataRequestTopic{Topic: &name})
	}
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("t")).AppendRequest(nil, q, 5)
}

func TestALookupThatMayCreateATopicIsNeverSentTwice(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		retry bool
	}{
		"v4 without creation": {metadata(4, false, "ghost-a"), true},
		"v4 with creation":    {metadata(4, true, "ghost-b"), false},
		"v3, always creating": {metadata(3, true, "ghost-c"), false},
		"mixed":               {metadata(4, true, "orders", "ghost-d"), false},
	} {
		d := drive(t, newPool(), DefaultConfig())
		d.feed(c.frame)
		if len(d.pool.pending) != 1 || d.pool.pending[0].Retry != c.retry || !bytes.Equal(d.pool.pending[0].Frame, c.frame) {
			t.Errorf("%s: forwarded %+v", name, d.pool.pending)
		}
	}
	d := drive(t, newPool(), DefaultConfig())
	if d.feed(metadata(4, true, "orders")); len(d.pool.pending) != 0 || len(d.answers()) != 1 {
		t.Error("a known topic is not answered here")
	}
}

func TestLookupForwardAsksABrokerEachTime(t *testing.T) {
	cfg := DefaultConfig()
	cfg.LookupForward = true
	p := newPool()
	p.atOnce = true
	d := drive(t, p, cfg)
	for range 2 {
		d.feed(metadata(4, false, "orders"))
	}
	d.feed(group[:15]) // ApiVersions stays local
	if len(p.pending) != 2 || len(d.answers()) != 3 {
		t.Fatalf("%d forwards, %d answers", len(p.pending), len(d.answers()))
	}
	for _, r := range p.pending {
		if !r.Spread || r.Broker != "" {
			t.Errorf("the policy cannot pick: %+v", r)
		}
	}
}

func TestInitProducerIDIsRetriedOnlyWithoutATransaction(t *testing.T) {
	for version := int16(0); version <= 5; version++ {
		for _, id := range []*string{nil, kmsg.StringPtr("tx")} {
			q := kmsg.NewPtrInitProducerIDRequest()
			q.Version, q.TransactionalID = version, id
			d := drive(t, newPool(), DefaultConfig())
			d.feed(kmsg.NewRequestFormatter().AppendRequest(nil, q, 5))
			if r := d.pool.pending[0]; r.Retry != (id == nil) || r.Shared {
				t.Errorf("v%d, transaction %v: retry %v, shared %v", version, id != nil, r.Retry, r.Shared)
			}
		}
	}
}

func TestWhatDoesNotBelongHereIsRefusedAsABrokerWould(t *testing.T) {
	produce := kmsg.NewPtrProduceRequest()
	produce.Version, produce.Acks = 9, -1
	pt := kmsg.NewProduceRequestTopic()
	pt.Topic, pt.Partitions = "orders", []kmsg.ProduceRequestTopicPartition{kmsg.NewProduceRequestTopicPartition()}
	produce.Topics = append(produce.Topics, pt)
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version = 5
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Version = 5
	ct := kmsg.NewCreateTopicsRequestTopic()
	ct.Topic = "new"
	create.Topics = append(create.Topics, ct)

	send := func(q kmsg.Request, resp kmsg.Response) *driver {
		d := drive(t, newPool(), DefaultConfig())
		d.feed(kmsg.NewRequestFormatter().AppendRequest(nil, q, 5))
		if len(d.pool.pending) != 0 {
			t.Fatalf("%T reached a broker", q)
		}
		if resp == nil {
			return d
		}
		resp.SetVersion(q.GetVersion())
		body := d.got[8:]
		if resp.IsFlexible() {
			body = body[1:]
		}
		if err := resp.ReadFrom(body); err != nil {
			t.Fatalf("%T: %v", q, err)
		}
		return d
	}
	pr := kmsg.NewPtrProduceResponse()
	if send(produce, pr); pr.Topics[0].Topic != "orders" || pr.Topics[0].Partitions[0].ErrorCode != 6 {
		t.Errorf("Produce: %+v", pr)
	}
	jr := kmsg.NewPtrJoinGroupResponse()
	if send(join, jr); jr.ErrorCode != 16 {
		t.Errorf("JoinGroup: %+v", jr)
	}
	cr := kmsg.NewPtrCreateTopicsResponse()
	if send(create, cr); cr.Topics[0].Topic != "new" || cr.Topics[0].ErrorCode != 44 || cr.Topics[0].ErrorMessage == nil {
		t.Errorf("CreateTopics: %+v", cr)
	}
	produce.Acks = 0
	if d := send(produce, nil); d.end != ReasonAcksZero || len(d.got) != 0 {
		t.Errorf("Produce with acks=0: end %v, %d bytes", d.end, len(d.got))
	}

	cfg := DefaultConfig()
	cfg.ForwardWrites = true
	create.TimeoutMillis = 30000
	d := drive(t, newPool(), cfg)
	d.feed(kmsg.NewRequestFormatter().AppendRequest(nil, create, 5))
	if len(d.pool.pending) != 1 || d.pool.pending[0].Retry || d.pool.pending[0].Timeout != 31*time.Second {
		t.Errorf("CreateTopics where writes are forwarded: %+v", d.pool.pending)
	}
}

func TestEveryRefusalParsesInEveryVersion(t *testing.T) {
	for key, class := range forward.Rules {
		req := kmsg.RequestForKey(key)
		if req == nil {
			t.Errorf("key %d has a rule, but kmsg does not know it", key)
			continue
		}
		for v := int16(0); v <= req.MaxVersion(); v++ {
			req.SetVersion(v)
			if p, ok := req.(*kmsg.ProduceRequest); ok {
				p.Acks = 1
			}
			frame := forward.Refuse(class, key, v, 9, req.AppendTo(nil))
			if frame == nil {
				continue
			}
			resp, body := req.ResponseKind(), frame[8:]
			if resp.IsFlexible() {
				body = body[1:]
			}
			if err := resp.ReadFrom(body); err != nil {
				t.Errorf("%s v%d: %v", kmsg.NameForKey(key), v, err)
			}
		}
	}
}

func TestBytesThatEndAConnection(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		want Reason
	}{
		"TLS hello":             {unhex("1603010200010001fc0303"), ReasonTLS},
		"HTTP":                  {[]byte("GET /health HTTP/1.1\r\n\r\n"), ReasonHTTP},
		"PROXY v1":              {[]byte("PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"), ReasonProxy},
		"PROXY v2":              {unhex("0d0a0d0a000d0a515549540a2111000c"), ReasonProxy},
		"SSH":                   {[]byte("SSH-2.0-OpenSSH_9"), ReasonSSH},
		"size -1":               {unhex("ffffffff"), ReasonSize},
		"size 0":                {unhex("00000000"), ReasonSize},
		"size 2":                {unhex("000000020012"), ReasonSize},
		"unknown key":           {unhex("0000000b03e7000000000007000174"), ReasonKey},
		"negative key":          {unhex("0000000bffff000000000007000174"), ReasonKey},
		"Metadata v14":          {unhex("000000100003000e000000060001740000000000"), ReasonVersion},
		"broker-to-broker":      {unhex("0000000b0004000000000007000174"), ReasonKey},
		"header past the frame": {unhex("0000000a00120000000000020005"), ReasonHeader},
		"a body too short":      {unhex("0000000c000300010000000300017400"), ReasonBody},
	} {
		d := drive(t, newPool(), DefaultConfig())
		if d.feed(c.in); d.end != c.want || len(d.got) != 0 {
			t.Errorf("%s: end %v with %d bytes, want %v with none", name, d.end, len(d.got), c.want)
		}
	}
}

func TestForwardFailuresAreNamed(t *testing.T) {
	for err, want := range map[error]Reason{
		forward.ErrNoBroker: ReasonNoBroker, forward.ErrDeadline: ReasonForwardTimeout, forward.ErrBusy: ReasonForwardBusy,
		errors.New("connection reset"): ReasonForwardFailed,
	} {
		d := drive(t, newPool(), DefaultConfig())
		d.feed(group)
		d.pool.pending[0].Done(forward.Result{Err: err})
		if d.run(); d.end != want || d.end.Orderly() {
			t.Errorf("%v: end %v, want a reset for %v", err, d.end, want)
		}
	}
}

func TestAColdStartHoldsRequestsAndALostSnapshotEndsThem(t *testing.T) {
	p := newPool()
	set := p.set
	p.set = nil
	d := drive(t, p, DefaultConfig())
	d.feed(group[:15])
	if d.last != Held || d.end != ReasonNone {
		t.Fatalf("step %v, end %v: want a held request", d.last, d.end)
	}
	p.set = set
	if d.run(); fmt.Sprint(d.answers()) != "[101]" {
		t.Fatalf("answers %v once there is a snapshot", d.answers())
	}
	p.set = nil
	if d.feed(group[:15]); d.end != ReasonNoSnapshot || d.end.Orderly() {
		t.Fatalf("end %v once the snapshot is too old, want a reset for %v", d.end, ReasonNoSnapshot)
	}

	d = drive(t, &pool{}, DefaultConfig())
	d.feed(group[:15])
	d.now = d.now.Add(DefaultConfig().Hold)
	if d.run(); d.end != ReasonNoSnapshot {
		t.Fatalf("end %v after the hold, want %v", d.end, ReasonNoSnapshot)
	}
}

func TestAnEndlessPipelineIsFlushedInBetween(t *testing.T) {
	cfg := DefaultConfig()
	cfg.OutBytes = 1000
	d := drive(t, newPool(), cfg)
	most := 0
	d.in = bytes.Repeat(group[:34], 5000)
	for d.last = NeedFlush; d.last == NeedFlush; {
		d.out.Reset()
		taken, step, _ := d.sess.Serve(d.in, d.out, &d.tally, d.now)
		most = max(most, d.out.Len())
		d.in, d.last = d.in[taken:], step
	}
	if len(d.in) != 0 || most > cfg.OutBytes+1000 {
		t.Errorf("%d bytes left over, %d collected at once", len(d.in), most)
	}
}

func TestServeOfLocalLookupsDoesNotAllocate(t *testing.T) {
	d := drive(t, newPool(), DefaultConfig())
	in := append(bytes.Clone(group[:34]), metadata(12, false, "orders")...)
	if n := testing.AllocsPerRun(1000, func() {
		d.out.Reset()
		if taken, _, _ := d.sess.Serve(in, d.out, &d.tally, d.now); taken != len(in) {
			t.Fatal("not served whole")
		}
		d.tally.Flushed(time.Microsecond)
	}); n != 0 {
		t.Errorf("%v allocations for three lookups", n)
	}
}

// FuzzSession holds that arbitrary bytes never panic, and that how they are cut changes neither answers nor verdict.
func FuzzSession(f *testing.F) {
	f.Add(group, uint16(5))
	f.Add(append(bytes.Clone(group), 0x16, 3, 1, 2), uint16(40))
	f.Add(metadata(12, true, "orders", "ghost"), uint16(3))
	f.Add(unhex("00000016001200040000000200017400056b76697004312e3000"), uint16(9))
	f.Add(unhex("000000170012007f0000001100017400096b7669702d7465737402"), uint16(4))
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		var ds [2]*driver
		for i := range ds {
			p := newPool()
			p.atOnce = true
			ds[i] = drive(t, p, DefaultConfig())
		}
		ds[0].feed(in)
		n := int(cut) % (len(in) + 1)
		ds[1].feed(in[:n])
		ds[1].feed(in[n:])
		a, b := ds[0], ds[1]
		if a.end != b.end || len(a.got) != len(b.got) || a.sess.Requests != b.sess.Requests || len(a.pool.pending) != len(b.pool.pending) {
			t.Fatalf("cut at %d of %d: end %v/%v, %d/%d bytes, %d/%d requests, %d/%d forwards", n, len(in), a.end, b.end,
				len(a.got), len(b.got), a.sess.Requests, b.sess.Requests, len(a.pool.pending), len(b.pool.pending))
		}
		a.answers()
	})
}
