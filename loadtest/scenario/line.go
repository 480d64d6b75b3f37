package scenario

import (
	"fmt"
	"time"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
)

// line is a client's conversation over one connection: at most one request is open at a time.
type line struct {
	shard  *shard
	own    *asks // what the client would ask
	asks   *asks // what it asks on this connection, once the target has said what it serves
	conn   *engine.Conn
	memory check.Memory
	op     op
	dialed engine.Time
	asked  engine.Time
	id     int32       // of the last request
	key    int16       // of the open request; -1: none is open
	view   *check.View // the last Metadata answer
}

func (l *line) init(s *shard, a *asks, h engine.Handler) {
	l.shard, l.own, l.asks, l.conn, l.key = s, a, a, s.loop.NewConn(h), -1
}

// due is when what begins now must be over: with the operation, if one is open.
func (l *line) due(now engine.Time) engine.Time {
	if l.op.open {
		return l.op.due
	}
	return now.Add(l.shard.cfg.Timeout)
}

// took records a stage, if it belongs to what is measured.
func (l *line) took(stage record.Stage, now, since engine.Time) {
	switch {
	case l.op.counted:
		l.shard.rec.Took(stage, now.Sub(since))
	case !l.op.open:
		l.shard.rec.Saw(stage, now.Sub(since))
	}
}

// dial begins a connection that must stand by the deadline.
func (l *line) dial(now engine.Time) failure.Class {
	l.memory.NewConnection()
	l.key, l.dialed, l.asks = -1, now, l.own
	why := l.conn.Dial(l.shard.sources.Next(), l.shard.target)
	if why == failure.None {
		l.conn.Deadline(l.due(now))
	}
	return why
}

// connected records the time of the connection.
func (l *line) connected() { l.took(record.Connect, engine.Now(), l.dialed) }

// askAPIVersions and askMetadata send a request. Its answer is due within the operation's time.
func (l *line) askAPIVersions() failure.Class { return l.ask(kafka.KeyAPIVersions, l.asks.apiVersions) }

func (l *line) askMetadata() failure.Class { return l.ask(kafka.KeyMetadata, l.asks.metadata) }

// greet sends what the client sends first of all.
func (l *line) greet() failure.Class {
	if l.asks.apiVersions == nil {
		return l.askMetadata()
	}
	return l.askAPIVersions()
}

func (l *line) ask(key int16, frame []byte) failure.Class {
	l.id++
	l.key, l.asked = key, engine.Now()
	kafka.SetCorrelation(frame, l.id)
	l.conn.Deadline(l.due(l.asked))
	return l.conn.Send(frame)
}

// answer judges a frame as the answer to the open request, and records its time. A target that refuses the version of
// ApiVersions is asked again: then a request is open after it, and nothing is wrong yet.
func (l *line) answer(frame []byte) (failure.Class, string) {
	now := engine.Now()
	key := l.key
	l.key = -1
	l.conn.Deadline(engine.Never)
	l.shard.rec.Received(len(frame))
	if key < 0 {
		return failure.Unasked, fmt.Sprintf("%d bytes", len(frame))
	}
	version, stage := l.asks.metadataVersion, record.Metadata
	if key == kafka.KeyAPIVersions {
		version, stage = l.asks.apiVersionsVersion, record.APIVersions
	}
	id, body, err := kafka.Header(key, version, frame)
	switch {
	case err != nil:
		return failure.Malformed, err.Error()
	case id != l.id:
		return failure.WrongID, fmt.Sprintf("correlation id %d, expected %d", id, l.id)
	}
	l.took(stage, now, l.asked)
	if key == kafka.KeyAPIVersions {
		return l.greeted(version, l.shard.check.APIVersions(version, body))
	}
	v := l.shard.check.Metadata(version, l.asks.topics, body)
	l.view = v
	if v.Fault != failure.None {
		return v.Fault, v.Detail
	}
	if v.PartitionErrors > 0 {
		l.shard.rec.PartitionError()
	}
	if why, detail := l.shard.check.Accept(&l.memory, v); why != failure.None {
		return why, detail
	}
	return l.shard.check.Across(v, time.Duration(l.asked), time.Duration(now))
}
