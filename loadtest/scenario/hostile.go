package scenario

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/record"
)

// hold is how long a hostile client stays where a target may keep the connection.
const hold = 500 * time.Millisecond

// verdict is how a sound target deals with hostile bytes. A broker does so.
type verdict uint8

const (
	cut    verdict = iota // it ends the connection, within the operation's time
	bears                 // it may wait for more, or end the connection; answers nothing
	answer                // it answers, with error 35 in a body of version 0
)

// assault is one kind of hostile bytes.
type assault struct {
	name  string
	bytes []byte
	want  verdict
}

// frame puts a length before a request's header and body.
func frame(key, version int16, correlation int32, rest ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(rest)))
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, uint32(correlation))
	return append(b, rest...)
}

func size(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// assaults are what clients by mistake, scanners and attackers send. No one of them costs a sound target more than a
// connection.
var assaults = []assault{
	{"length of 2 GiB", size(math.MaxInt32), cut},
	{"negative length", size(math.MaxUint32), cut},
	{"length of 0", size(0), cut},
	{"length shorter than a header", append(size(3), 0, 18, 0), cut},
	{"unknown api key", frame(9999, 0, 1, 0xff, 0xff), cut},
	{"negative api key", frame(-1, 0, 1, 0xff, 0xff), cut},
	{"Metadata of an unknown version", frame(kafka.KeyMetadata, 99, 1, 0xff, 0xff, 0), cut},
	{"more topics than bytes", frame(kafka.KeyMetadata, 1, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff), cut},
	{"more tags than bytes", frame(kafka.KeyMetadata, 12, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x07), cut},
	{"client id longer than the frame", frame(kafka.KeyMetadata, 1, 1, 0x7f, 0xff), cut},
	{"HTTP", []byte("GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"), cut},
	{"TLS", append([]byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03}, make([]byte, 32)...), cut},
	{"ApiVersions of an unknown version", frame(kafka.KeyAPIVersions, 99, 1, 0xff, 0xff, 0), answer},
	{"silence", nil, bears},
	{"half a length", []byte{0, 0}, bears},
	{"half a request", append(size(64<<10), []byte(strings.Repeat("a", 4<<10))...), bears},
}

// hostile sends one kind of bytes after the other, each on a connection of its own. An operation is one of them; it
// succeeds when the target does what a broker does.
type hostile struct {
	line
	turn   int
	leave  *engine.Timer
	assail *assault
}

func newHostile(s *shard) client {
	c := &hostile{turn: len(s.clients)}
	c.init(s, s.asks, c)
	c.leave = s.loop.NewTimer(func() { c.end(failure.None, "") })
	return c
}

func (c *hostile) prepare() { c.shard.free(c) }

func (c *hostile) start() {
	c.assail = &assaults[c.turn%len(assaults)]
	c.turn++
	now := c.shard.opens(&c.op, c.shard.intended)
	if why := c.dial(now); why != failure.None {
		c.end(why, "")
	}
}

// Connected implements engine.Handler.
func (c *hostile) Connected(*engine.Conn) {
	c.connected()
	if why := c.conn.Send(c.assail.bytes); why != failure.None {
		c.gone(why)
		return
	}
	c.key = 0 // bytes are out
	if c.assail.want == bears {
		c.conn.Deadline(engine.Never)
		c.leave.Set(engine.Now().Add(hold))
	}
}

// Frame implements engine.Handler.
func (c *hostile) Frame(_ *engine.Conn, frame []byte) {
	c.shard.rec.Received(len(frame))
	if c.assail.want != answer {
		c.end(failure.Unasked, fmt.Sprintf("%d bytes answer %s", len(frame), c.assail.name))
		return
	}
	var said kafka.APIVersions
	id, body, err := kafka.Header(kafka.KeyAPIVersions, 0, frame)
	if err == nil {
		err = said.Decode(0, body)
	}
	switch {
	case err != nil:
		c.end(failure.Malformed, fmt.Sprintf("%s: %v", c.assail.name, err))
	case id != 1:
		c.end(failure.WrongID, fmt.Sprintf("%s: correlation id %d, expected 1", c.assail.name, id))
	case said.ErrorCode != kafka.UnsupportedVersion:
		c.end(failure.ErrorCode, fmt.Sprintf("%s: error %d, expected %d", c.assail.name, said.ErrorCode, kafka.UnsupportedVersion))
	default:
		c.end(failure.None, "")
	}
}

// Failed implements engine.Handler.
func (c *hostile) Failed(_ *engine.Conn, why failure.Class) { c.gone(why) }

// gone judges the end of the connection.
func (c *hostile) gone(why failure.Class) {
	ended := why == failure.Closed || why == failure.Reset
	switch {
	case ended && c.key == 0 && c.assail.want != answer:
		c.end(failure.None, "")
	case why == failure.Timeout && c.key == 0:
		c.end(why, c.assail.name+": neither cut nor answered")
	default:
		c.end(why, c.assail.name)
	}
}

func (c *hostile) end(why failure.Class, detail string) {
	c.leave.Stop()
	c.conn.Close()
	if why != failure.None {
		c.shard.failed(&c.op, why, detail)
		c.shard.later(func() { c.shard.free(c) })
		return
	}
	c.shard.served(&c.op, c.shard.stage(record.Hostile))
	c.shard.free(c)
}
