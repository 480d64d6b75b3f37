package scenario

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// faults are planted in a peer: greet and answer edit sound answers, write replaces how a frame is sent.
type faults struct {
	answer func(request int, m *kmsg.MetadataResponse)
	greet  func(a *kmsg.ApiVersionsResponse)
	write  func(c *net.TCPConn, key int16, frame []byte) (keep bool)
}

// peer is a broker of a few lines that tells the truth until a test plants a fault. Its bytes are made by kmsg, not by
// the code under test.
type peer struct {
	faults

	mu   sync.Mutex
	open map[net.Conn]bool
	n    int // Metadata requests so far
}

// listen serves until the test ends and returns the address.
func (p *peer) listen(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.open = map[net.Conn]bool{}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.track(c, true)
			served.Go(func() {
				defer p.track(c, false)
				p.serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		p.mu.Lock()
		for c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		served.Wait()
	})
	return ln.Addr().String()
}

func (p *peer) track(c net.Conn, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if open {
		p.open[c] = true
	} else {
		delete(p.open, c)
		_ = c.Close()
	}
}

func (p *peer) serve(c *net.TCPConn) {
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		request := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(c, request); err != nil {
			return
		}
		key, frame := p.respond(request)
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		if p.write != nil {
			if !p.write(c, key, frame) {
				return
			}
		} else if _, err := c.Write(frame); err != nil {
			return
		}
	}
}

// respond returns the whole answer frame; its length is not filled in.
func (p *peer) respond(request []byte) (key int16, frame []byte) {
	key, version := int16(binary.BigEndian.Uint16(request)), int16(binary.BigEndian.Uint16(request[2:]))
	frame = append(make([]byte, 4), request[4:8]...)
	if key == 18 {
		a := kmsg.NewPtrApiVersionsResponse()
		a.Version = version
		a.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 13}, {ApiKey: 18, MaxVersion: 4}}
		if p.greet != nil {
			p.greet(a)
		}
		return key, a.AppendTo(frame)
	}
	m := soundMetadata(version)
	p.mu.Lock()
	p.n++
	n := p.n
	p.mu.Unlock()
	if p.answer != nil {
		p.answer(n, m)
	}
	if version >= 9 {
		frame = append(frame, 0) // no tags in the header
	}
	return key, m.AppendTo(frame)
}

func soundMetadata(version int16) *kmsg.MetadataResponse {
	m := kmsg.NewPtrMetadataResponse()
	m.Version = version
	m.ClusterID, m.ControllerID = kmsg.StringPtr("cluster-a"), 1
	for id := int32(1); id <= 3; id++ {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = id, "127.0.0.1", 9091+id
		m.Brokers = append(m.Brokers, b)
	}
	topic := kmsg.NewMetadataResponseTopic()
	topic.Topic, topic.TopicID = kmsg.StringPtr("orders"), [16]byte{1}
	for i := int32(0); i < 3; i++ {
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Leader, p.LeaderEpoch = i, i+1, 7
		p.Replicas, p.ISR = []int32{1, 2, 3}, []int32{1, 2, 3}
		topic.Partitions = append(topic.Partitions, p)
	}
	m.Topics = []kmsg.MetadataResponseTopic{topic}
	return m
}
