package scenario

import (
	"fmt"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
)

// line is a client's conversation over one connection: at most one request is open at a time.
type line struct {
	shard  *shard
	conn   *engine.Conn
	memory check.Memory
	dialed engine.Time
	asked  engine.Time
	id     int32 // of the last request
	key    int16 // of the open request; -1: none is open
}

func (l *line) init(s *shard, h engine.Handler) {
	l.shard, l.conn, l.key = s, s.loop.NewConn(h), -1
}

// dial begins a connection that must stand by the deadline.
func (l *line) dial(now engine.Time) failure.Class {
	l.memory.NewConnection()
	l.key, l.dialed = -1, now
	why := l.conn.Dial(l.shard.sources.Next(), l.shard.target)
	if why == failure.None {
		l.conn.Deadline(now.Add(l.shard.cfg.Timeout))
	}
	return why
}

// askAPIVersions and askMetadata send a request. Its answer is due within the operation's time.
func (l *line) askAPIVersions() failure.Class {
	return l.ask(kafka.KeyAPIVersions, l.shard.apiVersions)
}

func (l *line) askMetadata() failure.Class { return l.ask(kafka.KeyMetadata, l.shard.metadata) }

func (l *line) ask(key int16, frame []byte) failure.Class {
	l.id++
	l.key, l.asked = key, engine.Now()
	kafka.SetCorrelation(frame, l.id)
	l.conn.Deadline(l.asked.Add(l.shard.cfg.Timeout))
	return l.conn.Send(frame)
}

// answer judges a frame as the answer to the open request, and records its time.
func (l *line) answer(frame []byte) (failure.Class, string) {
	now := engine.Now()
	key := l.key
	l.key = -1
	l.conn.Deadline(engine.Never)
	l.shard.rec.Received(len(frame))
	if key < 0 {
		return failure.Unasked, fmt.Sprintf("%d bytes", len(frame))
	}
	version, stage := l.shard.cfg.MetadataVersion, record.Metadata
	if key == kafka.KeyAPIVersions {
		version, stage = l.shard.cfg.APIVersionsVersion, record.APIVersions
	}
	id, body, err := kafka.Header(key, version, frame)
	switch {
	case err != nil:
		return failure.Malformed, err.Error()
	case id != l.id:
		return failure.WrongID, fmt.Sprintf("correlation id %d, expected %d", id, l.id)
	}
	l.shard.rec.Took(stage, now.Sub(l.asked))
	if key == kafka.KeyAPIVersions {
		r := l.shard.check.APIVersions(version, body)
		return r.Fault, r.Detail
	}
	v := l.shard.check.Metadata(version, l.shard.topics, body)
	if v.Fault != failure.None {
		return v.Fault, v.Detail
	}
	if v.PartitionErrors > 0 {
		l.shard.rec.PartitionError()
	}
	return l.shard.check.Accept(&l.memory, v)
}
