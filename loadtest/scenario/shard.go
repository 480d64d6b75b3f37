package scenario

import (
	"context"
	"time"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
)

const keyMetadata = kafka.KeyMetadata

// pauseAfterFailure keeps a closed loop from spinning on a target that refuses.
const pauseAfterFailure = 10 * time.Millisecond

// shard is one loop's part of a run: its clients and all that they share.
type shard struct {
	cfg     *Config
	loop    *engine.Loop
	target  *engine.Target
	sources engine.Sources
	check   *check.Checker
	rec     *record.Recorder
	topics  int

	apiVersions, metadata []byte // request frames; the correlation id is written before each sending

	clients   []client
	prepared  int         // clients that were told to prepare
	preparing bool        // within prepareMore
	waiting   int         // clients that are not prepared yet
	ready     func()      // called once when none is waiting
	lastFault string      // of a client that could not be made ready
	running   bool        // operations are begun
	intended  engine.Time // when the operation being started should have begun
}

func newShard(cfg *Config, target *engine.Target, index, clients int) (*shard, error) {
	loop, err := engine.NewLoop()
	if err != nil {
		return nil, err
	}
	s := &shard{
		cfg: cfg, loop: loop, target: target, topics: cfg.topics(),
		check:       check.New(check.Expect{ClusterID: cfg.ClusterID, TopicErrors: cfg.TopicErrors}),
		rec:         record.NewRecorder(),
		apiVersions: kafka.APIVersionsRequest(cfg.APIVersionsVersion, cfg.ClientID, cfg.Software),
		metadata:    kafka.MetadataRequest(cfg.MetadataVersion, cfg.ClientID, cfg.Lookup),
	}
	if cfg.SourceCount > 0 && target.Addr.Addr().IsLoopback() && target.Addr.Addr().Is4() {
		if s.sources, err = engine.NewSources(cfg.Sources, index*cfg.SourceCount, cfg.SourceCount); err != nil {
			loop.Close()
			return nil, err
		}
	}
	loop.PollDelay = func(nanos int64) { s.rec.Took(record.Poll, time.Duration(nanos)) }
	for range clients {
		s.clients = append(s.clients, Scenarios[cfg.Scenario](s))
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
	switch {
	case s.running:
		s.begin(c)
	case s.waiting > 0:
		s.waiting--
		s.prepareMore()
	}
}

// run begins the load, unless it runs already: each client starts an operation as soon as its last one has ended.
func (s *shard) run() {
	if s.running {
		return
	}
	s.running = true
	for _, c := range s.clients {
		s.begin(c)
	}
}

func (s *shard) begin(c client) {
	s.intended = engine.Now()
	c.start()
}

// began counts an operation as started and returns the time of it.
func (s *shard) began(intended engine.Time) engine.Time {
	now := engine.Now()
	s.rec.Start()
	s.rec.Took(record.Lag, now.Sub(intended))
	return now
}

// later calls f after the pause that follows a failure.
func (s *shard) later(f func()) {
	s.loop.NewTimer(f).Set(engine.Now().Add(pauseAfterFailure))
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
