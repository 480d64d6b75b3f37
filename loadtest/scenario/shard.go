package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
	"github.com/kvip/kvip/loadtest/schedule"
)

// pauseAfterFailure keeps clients from spinning on a target that refuses.
const pauseAfterFailure = 10 * time.Millisecond

// op is one operation of a client.
type op struct {
	intended, due engine.Time
	open          bool
	counted       bool // should have begun within the measurement
	told          []check.Told
}

// shard is one loop's part of a run: its clients and all that they share.
type shard struct {
	cfg     *Config
	kind    Kind
	kinds   map[string]Kind
	loop    *engine.Loop
	target  *engine.Target
	sources engine.Sources
	check   *check.Checker
	rec     *record.Recorder
	asks    *asks
	random  *rand.Rand
	index   int

	libraries  map[string]*asks
	libDeal    deal
	mixDeal    deal
	addresses  map[string]*address
	resolve    func(func()) // runs a lookup of a name beside the loop
	background context.Context

	clients   []client
	prepared  int    // clients that were told to prepare
	preparing bool   // within prepareMore
	waiting   int    // clients that are not prepared yet
	ready     func() // called once when none is waiting
	lastFault string // of a client that could not be made ready

	running     bool        // operations are begun
	begin       engine.Time // of the load: beats count from here
	from, until engine.Time // the measurement
	intended    engine.Time // when the operation being started should have begun
	open        int         // operations under way that count
	drained     func()      // called once, after the load, when none is under way

	idle     ring[client]
	backlog  ring[engine.Time] // intended operations that found no client free
	beats    *schedule.Beats   // nil: closed loop or paced
	next     engine.Time       // intended time of the next beat
	beatTick *engine.Timer

	claims   ring[claim] // by time
	verdicts *engine.Timer
}

func newShard(cfg *Config, target *engine.Target, index, clients int) (*shard, error) {
	loop, err := engine.NewLoop()
	if err != nil {
		return nil, err
	}
	s := &shard{
		cfg: cfg, kind: Scenarios[cfg.Scenario], kinds: Scenarios, loop: loop, target: target, index: index,
		check:   check.New(check.Expect{ClusterID: cfg.ClusterID, TopicErrors: cfg.TopicErrors, EpochGrace: cfg.EpochGrace, Facts: cfg.Truth != nil}),
		rec:     record.NewRecorder(),
		asks:    newAsks(cfg.ClientID, cfg.Software, cfg.APIVersionsVersion, cfg.MetadataVersion, cfg.Lookup),
		random:  rand.New(rand.NewPCG(cfg.Seed, uint64(index)+1<<32)),
		libDeal: newDeal(cfg.Libraries), mixDeal: newDeal(cfg.Mix),
		libraries: map[string]*asks{}, addresses: map[string]*address{}, next: engine.Never,
	}
	if cfg.SourceCount > 0 && target.Addr.Addr().IsLoopback() && target.Addr.Addr().Is4() {
		if s.sources, err = engine.NewSources(cfg.Sources, index*cfg.SourceCount, cfg.SourceCount); err != nil {
			loop.Close()
			return nil, err
		}
	}
	s.asks.draw = newDraw(cfg)
	loop.PollDelay = func(nanos int64) { s.rec.Saw(record.Poll, time.Duration(nanos)) }
	s.beatTick, s.verdicts = loop.NewTimer(s.beat), loop.NewTimer(s.verdict)
	for range clients {
		s.clients = append(s.clients, s.kind.New(s))
	}
	s.waiting = clients
	return s, nil
}

// atOnce is how many clients prepare at the same time, so that a listener's queue does not overflow before the load begins.
const atOnce = 256

// prepare readies every client; ready is called on the loop once all are.
func (s *shard) prepare(ready func()) {
	s.ready = ready
	s.prepareMore()
}

// prepareMore is not re-entered by clients that are ready at once.
func (s *shard) prepareMore() {
	if s.preparing {
		return
	}
	s.preparing = true
	for s.prepared < len(s.clients) && s.prepared-(len(s.clients)-s.waiting) < atOnce {
		s.prepared++
		s.clients[s.prepared-1].prepare()
	}
	s.preparing = false
	if s.waiting == 0 {
		s.ready()
	}
}

// free takes a client that can begin an operation.
func (s *shard) free(c client) {
	if s.waiting > 0 {
		s.waiting--
		s.idle.push(c)
		s.prepareMore()
		return
	}
	switch {
	case s.beats != nil && s.backlog.len() > 0:
		s.rec.Waited++
		s.begins(c, s.backlog.pop())
	case s.beats == nil && s.running && !s.kind.Paced:
		s.begins(c, engine.Now())
	default:
		s.idle.push(c)
	}
}

// run begins the load at a time: a warm-up until from, the measurement until until.
func (s *shard) run(begin, from, until engine.Time, beats *schedule.Beats) {
	s.rec.Plan(until.Sub(from), s.cfg.Window)
	s.begin, s.from, s.until, s.beats = begin, from, until, beats
	s.backlog = ring[engine.Time]{}
	s.running, s.drained, s.open = true, nil, 0
	switch {
	case s.kind.Paced:
		for _, c := range s.clients {
			s.intended = begin
			c.start()
		}
	case beats != nil:
		s.advance()
		s.beatTick.Set(s.next)
	default:
		s.loop.NewTimer(func() {
			for n := s.idle.len(); n > 0; n-- {
				s.begins(s.idle.pop(), engine.Now())
			}
		}).Set(begin)
	}
}

// cut has the measurement end now.
func (s *shard) cut(now engine.Time) {
	s.until, s.next = min(s.until, now), engine.Never
	s.beatTick.Stop()
	s.rec.Cut(s.until.Sub(s.from))
}

// stop ends the load; drained is called on the loop once no operation that counts is under way.
func (s *shard) stop(drained func()) {
	s.running, s.drained = false, drained
	if s.kind.Paced {
		for _, c := range s.clients {
			c.(paced).pause()
		}
	}
	s.expire(engine.Now())
	s.settle()
}

// give gives up what has not begun, and waits for nothing any more.
func (s *shard) give() {
	for ; s.next != engine.Never; s.advance() {
		if s.counts(s.next) {
			s.rec.Intend(s.next.Sub(s.from))
		}
	}
	s.beatTick.Stop()
	s.drained = nil
	for s.claims.len() > 0 {
		s.hold(s.claims.pop())
	}
	for s.backlog.len() > 0 {
		s.noClient(s.backlog.pop())
	}
	s.beats = nil
}

func (s *shard) settle() {
	if s.drained != nil && s.open == 0 && s.backlog.len() == 0 && s.claims.len() == 0 && s.next == engine.Never {
		f := s.drained
		s.drained = nil
		f()
	}
}

// burst is how many beats are begun before connections are looked at again.
const burst = 16

// beat begins what is due.
func (s *shard) beat() {
	now := engine.Now()
	s.expire(now)
	for n := 0; s.next <= now && n < burst; n++ {
		if s.counts(s.next) {
			s.rec.Intend(s.next.Sub(s.from))
		}
		if s.idle.len() > 0 {
			s.begins(s.idle.pop(), s.next)
		} else {
			s.backlog.push(s.next)
		}
		s.advance()
	}
	s.beatTick.Set(s.next)
	s.settle()
}

func (s *shard) advance() {
	at, ok := s.beats.Next()
	s.next = s.begin.Add(at)
	if !ok || s.next >= s.until {
		s.next = engine.Never
	}
}

// expire fails operations that found no client within their time.
func (s *shard) expire(now engine.Time) {
	for s.backlog.len() > 0 && now.Sub(s.backlog.first()) > s.cfg.Timeout {
		s.noClient(s.backlog.pop())
	}
}

func (s *shard) noClient(intended engine.Time) {
	if s.counts(intended) {
		s.rec.Fail(engine.Now().Sub(s.from), failure.LocalNoClient, fmt.Sprintf("%d clients are too few, or the target holds them up", len(s.clients)))
	}
}

func (s *shard) counts(intended engine.Time) bool { return intended >= s.from && intended < s.until }

func (s *shard) begins(c client, intended engine.Time) {
	s.intended = intended
	c.start()
}

// opens begins an operation and returns the time of it.
func (s *shard) opens(o *op, intended engine.Time) engine.Time {
	now := engine.Now()
	*o = op{intended: intended, due: now.Add(s.cfg.Timeout), open: true, counted: s.counts(intended)}
	if o.counted {
		s.open++
		at := intended.Sub(s.from)
		if s.beats == nil {
			s.rec.Intend(at)
		}
		s.rec.Start(at, now.Sub(intended))
	}
	return now
}

// served ends an operation well.
func (s *shard) served(o *op, stage record.Stage) {
	o.open = false
	if o.counted {
		now := engine.Now()
		s.rec.Answer(now.Sub(s.from), stage, now.Sub(o.intended))
		s.claim(o, now)
		s.closes(o)
	}
}

// failed ends an operation badly.
func (s *shard) failed(o *op, why failure.Class, detail string) {
	o.open = false
	if o.counted {
		s.rec.Fail(engine.Now().Sub(s.from), why, detail)
		s.closes(o)
	}
}

func (s *shard) closes(o *op) {
	o.counted = false
	if s.open--; s.drained != nil {
		s.settle()
	}
}

// later calls f after the pause that follows a failure.
func (s *shard) later(f func()) { s.after(pauseAfterFailure, f) }

func (s *shard) after(d time.Duration, f func()) { s.loop.NewTimer(f).Set(engine.Now().Add(d)) }

// library returns the name of the next client's library and its requests.
func (s *shard) library() (*Library, *asks) {
	name := s.libDeal.next()
	lib := Libraries[name]
	if s.libraries[name] == nil {
		s.libraries[name] = lib.asks(s.cfg)
	}
	return lib, s.libraries[name]
}

// do runs f on the shard's loop and waits for it. It reports false when the loop or ctx ended first.
func (s *shard) do(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	if !s.loop.Do(func() { f(); close(done) }) {
		return false
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
