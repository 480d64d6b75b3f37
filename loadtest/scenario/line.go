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
	id     int32              // of the last request
	key    int16              // of the open request; -1: none is open
	open   *request           // the last one
	serves *kafka.APIVersions // what the target said that it serves; nil: it was not asked on this connection
	view   *check.View        // the last Metadata answer
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
	l.key, l.dialed, l.asks, l.serves = -1, now, l.own, nil
	why := l.conn.Dial(l.shard.sources.Next(), l.shard.target)
	if why == failure.None {
		l.conn.Deadline(l.due(now))
	}
	return why
}

// connected records the time of the connection.
func (l *line) connected() { l.took(record.Connect, engine.Now(), l.dialed) }

// askAPIVersions and askMetadata send a request. Its answer is due within the operation's time.
func (l *line) askAPIVersions() failure.Class { return l.ask(l.asks.apiVersions) }

func (l *line) askMetadata() failure.Class { return l.ask(l.asks.metadata) }

// greet sends what the client sends first of all.
func (l *line) greet() failure.Class {
	if l.asks.apiVersions == nil {
		return l.askMetadata()
	}
	return l.askAPIVersions()
}

func (l *line) ask(r *request) failure.Class {
	l.id++
	l.key, l.open, l.asked = r.key, r, engine.Now()
	kafka.SetCorrelation(r.frame, l.id)
	l.conn.Deadline(l.due(l.asked))
	return l.conn.Send(r.frame)
}

// stages are where the times of requests belong.
var stages = map[int16]record.Stage{
	kafka.KeyAPIVersions: record.APIVersions, kafka.KeyMetadata: record.Metadata,
	kafka.KeyDescribeCluster: record.DescribeCluster, kafka.KeyFindCoordinator: record.FindCoordinator,
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
	version := l.open.version
	id, body, err := kafka.Header(key, version, frame)
	switch {
	case err != nil:
		return failure.Malformed, err.Error()
	case id != l.id:
		return failure.WrongID, fmt.Sprintf("correlation id %d, expected %d", id, l.id)
	}
	l.took(stages[key], now, l.asked)
	if key == kafka.KeyAPIVersions {
		return l.greeted(l.shard.check.APIVersions(version, body))
	}
	var v *check.View
	switch key {
	case kafka.KeyDescribeCluster:
		v = l.shard.check.DescribeCluster(version, body)
	case kafka.KeyFindCoordinator:
		v = l.shard.check.FindCoordinator(version, l.open.group, body)
	default:
		v = l.shard.check.Metadata(version, l.open.topics, body)
		l.view = v
	}
	if v.Fault != failure.None {
		return v.Fault, v.Detail
	}
	if v.PartitionErrors > 0 {
		l.shard.rec.PartitionError()
	}
	if v.CoordinatorErrors > 0 {
		l.shard.rec.CoordinatorError()
	}
	if l.op.counted && l.shard.cfg.Truth != nil {
		l.op.told = append(l.op.told, check.Told{View: v, Asked: time.Duration(l.asked), At: time.Duration(now)})
	}
	if why, detail := l.shard.check.Accept(&l.memory, v); why != failure.None {
		return why, detail
	}
	return l.shard.check.Across(v, time.Duration(l.asked), time.Duration(now))
}
