package scenario

import (
	"encoding/binary"
	"errors"
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
	find   func(c *kmsg.FindCoordinatorResponseCoordinator)
	// poses is the port that it advertises; 0: its own.
	poses int
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
		size := int32(binary.BigEndian.Uint32(head))
		if size < 8 || size > 1<<20 {
			return
		}
		request := make([]byte, size)
		if _, err := io.ReadFull(c, request); err != nil {
			return
		}
		key, frame := p.respond(request, c.LocalAddr().(*net.TCPAddr).Port)
		if frame == nil {
			return
		}
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

// respond returns the whole answer frame; its length is not filled in. It returns nil for what a broker closes on.
func (p *peer) respond(request []byte, port int) (key int16, frame []byte) {
	key, version := int16(binary.BigEndian.Uint16(request)), int16(binary.BigEndian.Uint16(request[2:]))
	frame = append(make([]byte, 4), request[4:8]...)
	if key == 18 {
		a := kmsg.NewPtrApiVersionsResponse()
		a.Version = version
		a.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 3, MaxVersion: 13}, {ApiKey: 10, MaxVersion: 6}, {ApiKey: 18, MaxVersion: 5}, {ApiKey: 60, MaxVersion: 2}}
		if version > 5 {
			a.Version, a.ErrorCode, a.ApiKeys = 0, 35, a.ApiKeys[2:3]
		}
		if p.greet != nil {
			p.greet(a)
		}
		return key, a.AppendTo(frame)
	}
	if p.poses != 0 {
		port = p.poses
	}
	switch key {
	case 10:
		return key, p.coordinator(frame, request, version, port)
	case 60:
		d := kmsg.NewPtrDescribeClusterResponse()
		d.Version, d.ClusterID, d.ControllerID = version, "cluster-a", 1
		for _, b := range soundMetadata(12, port).Brokers {
			d.Brokers = append(d.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: b.NodeID, Host: b.Host, Port: b.Port})
		}
		return key, d.AppendTo(append(frame, 0))
	}
	asked := kmsg.NewPtrMetadataRequest()
	asked.Version = version
	if key != 3 || version > 13 || readRequest(asked, request[8:]) != nil {
		return key, nil
	}
	m := soundMetadata(version, port)
	if asked.Topics != nil && len(asked.Topics) == 0 && version > 0 {
		m.Topics = nil
	}
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

// coordinator names broker 2 for every group.
func (p *peer) coordinator(frame, request []byte, version int16, port int) []byte {
	asked := kmsg.NewPtrFindCoordinatorRequest()
	asked.Version = version
	if readRequest(asked, request[8:]) != nil {
		return nil
	}
	answer := kmsg.NewPtrFindCoordinatorResponse()
	answer.Version = version
	if asked.CoordinatorKey != "" {
		asked.CoordinatorKeys = []string{asked.CoordinatorKey}
	}
	for _, key := range asked.CoordinatorKeys {
		c := kmsg.FindCoordinatorResponseCoordinator{Key: key, NodeID: 2, Host: "127.0.0.1", Port: int32(port)}
		if p.find != nil {
			p.find(&c)
		}
		answer.Coordinators = append(answer.Coordinators, c)
		answer.NodeID, answer.Host, answer.Port, answer.ErrorCode = c.NodeID, c.Host, c.Port, c.ErrorCode
	}
	if version >= 3 {
		frame = append(frame, 0) // no tags in the header
	}
	return answer.AppendTo(frame)
}

// readRequest reads what follows the correlation id: client id, the header's tags, the body.
func readRequest(r kmsg.Request, b []byte) error {
	bad := errors.New("not a request")
	if len(b) < 2 {
		return bad
	}
	if n := int(int16(binary.BigEndian.Uint16(b))); n > 0 {
		if len(b) < 2+n {
			return bad
		}
		b = b[n:]
	}
	b = b[2:]
	if r.IsFlexible() {
		if len(b) < 1 || b[0] != 0 {
			return bad
		}
		b = b[1:]
	}
	return r.ReadFrom(b)
}

// soundMetadata advertises three brokers at the peer's own port.
func soundMetadata(version int16, port int) *kmsg.MetadataResponse {
	m := kmsg.NewPtrMetadataResponse()
	m.Version = version
	m.ClusterID, m.ControllerID = kmsg.StringPtr("cluster-a"), 1
	for id := int32(1); id <= 3; id++ {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = id, "127.0.0.1", int32(port)
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
