package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/failure"
)

// PeerFault is one way in which a [FaultyPeer] fails its clients.
type PeerFault struct {
	Class failure.Class // what a client should call it
	About string

	connect func(p *FaultyPeer, c *net.TCPConn) (keep bool)                         // instead of serving a new connection
	edit    func(p *FaultyPeer, nth int, m *kmsg.MetadataResponse)                  // n-th Metadata answer, from 0
	send    func(p *FaultyPeer, c *net.TCPConn, frame []byte, body int) (keep bool) // instead of writing the frame whose body begins there
	refuse  bool
}

// Healthy is the fault of a peer that has none.
const Healthy = "healthy"

// PeerClusterID is the cluster that a peer's answers name.
const PeerClusterID = "kvip-lab-peer"

const unsupportedVersion = 35

// dripEvery is the time between two bytes of a dripping peer: an answer takes minutes.
const dripEvery = 300 * time.Millisecond

// peerFaults are planted in answers to Metadata, so that clients may connect and greet before they meet them, except those
// of the connection itself. To add one, add a line.
var peerFaults = map[string]PeerFault{
	Healthy:  {About: "tells the truth"},
	"refuse": {Class: failure.Refused, About: "nobody listens", refuse: true},
	"reset-accept": {Class: failure.Reset, About: "resets connections as soon as it has accepted them",
		connect: func(_ *FaultyPeer, c *net.TCPConn) bool { _ = c.SetLinger(0); return false }},
	"mute": {Class: failure.Timeout, About: "accepts and says nothing, not even to ApiVersions",
		connect: func(p *FaultyPeer, c *net.TCPConn) bool { _, _ = io.Copy(io.Discard, c); return false }},
	"reset": {Class: failure.Reset, About: "resets instead of answering",
		send: func(_ *FaultyPeer, c *net.TCPConn, _ []byte, _ int) bool { _ = c.SetLinger(0); return false }},
	"reset-inside": {Class: failure.Reset, About: "resets inside the answer",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			_, _ = c.Write(frame[:len(frame)/2])
			time.Sleep(20 * time.Millisecond) // or the bytes would go with the connection
			_ = c.SetLinger(0)
			return false
		}},
	"close": {Class: failure.Closed, About: "closes instead of answering",
		send: func(*FaultyPeer, *net.TCPConn, []byte, int) bool { return false }},
	"short": {Class: failure.Short, About: "closes inside the answer",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			_, _ = c.Write(frame[:len(frame)/2])
			return false
		}},
	"short-body": {Class: failure.Short, About: "sends a whole frame whose body ends inside a field",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			return write(c, resized(frame[:len(frame)-10]))
		}},
	"silent": {Class: failure.Timeout, About: "never answers",
		send: func(*FaultyPeer, *net.TCPConn, []byte, int) bool { return true }},
	"drip": {Class: failure.Timeout, About: "feeds the answer byte by byte", send: drip},
	"wrong-id": {Class: failure.WrongID, About: "answers with a correlation id that nobody sent",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			frame[4] ^= 0x40
			return write(c, frame)
		}},
	"unasked": {Class: failure.Unasked, About: "answers twice",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			return write(c, append(slices.Clone(frame), frame...))
		}},
	"malformed": {Class: failure.Malformed, About: "sends a body of which one byte too much is left",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			return write(c, resized(append(frame, 0)))
		}},
	"garbage": {Class: failure.Malformed, About: "sends a body of 0xff",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, body int) bool {
			for i := body; i < len(frame); i++ {
				frame[i] = 0xff
			}
			return write(c, frame)
		}},
	"huge": {Class: failure.Malformed, About: "announces an answer of 2 GB",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			binary.BigEndian.PutUint32(frame, 1<<31-1)
			return write(c, frame)
		}},
	"negative": {Class: failure.Malformed, About: "announces an answer of less than nothing",
		send: func(_ *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
			binary.BigEndian.PutUint32(frame, 1<<32-1)
			return write(c, frame)
		}},
	"error-code": {Class: failure.ErrorCode, About: "answers with an error, at the top from v13 on, else at every topic",
		edit: func(_ *FaultyPeer, _ int, m *kmsg.MetadataResponse) {
			if m.Version >= 13 {
				m.ErrorCode = 41 // NOT_CONTROLLER
			}
			for i := range m.Topics {
				m.Topics[i].ErrorCode = 5 // LEADER_NOT_AVAILABLE
			}
		}},
	"empty-list": {Class: failure.EmptyList, About: "names no broker",
		edit: func(_ *FaultyPeer, _ int, m *kmsg.MetadataResponse) { m.Brokers = nil }},
	"missing-topic": {Class: failure.MissingTopic, About: "leaves out the topics asked for; who asks for all cannot know",
		edit: func(_ *FaultyPeer, _ int, m *kmsg.MetadataResponse) { m.Topics = nil }},
	"wrong-cluster": {Class: failure.WrongCluster, About: "names another cluster in every second answer (Metadata v2 on); only who keeps a connection or knows the cluster can tell",
		edit: func(_ *FaultyPeer, nth int, m *kmsg.MetadataResponse) {
			if nth%2 == 1 {
				m.ClusterID = kmsg.StringPtr("another-cluster")
			}
		}},
	"epoch-back": {Class: failure.EpochBack, About: "takes leader epochs back in every second answer (Metadata v7 on)",
		edit: func(_ *FaultyPeer, nth int, m *kmsg.MetadataResponse) {
			for i := range m.Topics {
				for j := range m.Topics[i].Partitions {
					m.Topics[i].Partitions[j].LeaderEpoch -= int32(nth % 2)
				}
			}
		}},
	"stale-address": {Class: failure.StaleAddress, About: "advertises a broker where nobody listens; only who dials it can know",
		edit: func(p *FaultyPeer, _ int, m *kmsg.MetadataResponse) {
			m.Brokers[len(m.Brokers)-1].Port = int32(p.nobody)
		}},
	"untrue": {Class: failure.Untrue, About: "names other leaders than a healthy peer does; only who asks one of those, too, can know",
		edit: func(_ *FaultyPeer, _ int, m *kmsg.MetadataResponse) {
			for i := range m.Topics {
				for j := range m.Topics[i].Partitions {
					m.Topics[i].Partitions[j].Leader = 1 + m.Topics[i].Partitions[j].Leader%3
				}
			}
		}},
}

// PeerFaults are the kinds that [StartFaultyPeer] knows. Failures of the client's own machine, and a target without a
// route, cannot be planted by a peer.
func PeerFaults() map[string]PeerFault { return maps.Clone(peerFaults) }

// FaultyPeer speaks enough Kafka to be bootstrapped from, ApiVersions and Metadata at every version, and fails its clients
// in one chosen way. Its bytes are franz-go's.
type FaultyPeer struct {
	port    int
	nobody  int // a port where nothing listens
	release []func()
	ctx     context.Context
	stop    context.CancelFunc
	served  sync.WaitGroup

	mu       sync.Mutex
	fault    PeerFault
	nth      int // Metadata answers since the fault was set
	listener net.Listener
	open     map[net.Conn]bool
}

// StartFaultyPeer starts a peer on a loopback address with one of [PeerFaults]. The caller must Close it.
func StartFaultyPeer(kind string) (_ *FaultyPeer, err error) {
	p := &FaultyPeer{open: map[net.Conn]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	for _, port := range []*int{&p.port, &p.nobody} {
		n, release, err := ReservePort(loopback)
		if err != nil {
			return nil, err
		}
		*port, p.release = n, append(p.release, release)
	}
	if err := p.Set(kind); err != nil {
		return nil, err
	}
	return p, nil
}

// Addr is the host:port on which it listens.
func (p *FaultyPeer) Addr() string { return hostPort(loopback, p.port) }

// Set changes the fault, for the answers of open connections, too.
func (p *FaultyPeer) Set(kind string) error {
	f, ok := peerFaults[kind]
	if !ok {
		return fmt.Errorf("lab: no faulty peer is called %q, only %s", kind, strings.Join(slices.Sorted(maps.Keys(peerFaults)), ", "))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return errors.New("lab: the faulty peer is closed")
	}
	p.fault, p.nth = f, 0
	switch {
	case f.refuse && p.listener != nil:
		_ = p.listener.Close()
		p.listener = nil
	case !f.refuse && p.listener == nil:
		l, err := net.Listen("tcp", p.Addr())
		if err != nil {
			return fmt.Errorf("lab: faulty peer: %w", err)
		}
		p.listener = l
		p.served.Go(func() { acceptAll(p.ctx, l, p.accept) })
	}
	return nil
}

// Close ends every connection and returns when nothing of the peer is left.
func (p *FaultyPeer) Close() error {
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		return nil
	}
	p.stop()
	if p.listener != nil {
		_ = p.listener.Close()
	}
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.served.Wait()
	for _, release := range p.release {
		release()
	}
	return nil
}

func (p *FaultyPeer) accept(c *net.TCPConn) {
	p.mu.Lock()
	p.open[c] = true
	closed, fault := p.ctx.Err() != nil, p.fault
	p.mu.Unlock()
	if closed {
		_ = c.Close()
	}
	p.served.Go(func() {
		if fault.connect == nil || fault.connect(p, c) {
			p.serve(c)
		}
		_ = c.Close()
		p.mu.Lock()
		delete(p.open, c)
		p.mu.Unlock()
	})
}

// maxPeerRequest is the longest request a peer reads, in bytes.
const maxPeerRequest = 1 << 20

func (p *FaultyPeer) serve(c *net.TCPConn) {
	head := make([]byte, 4)
	for {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head)
		if n < 10 || n > maxPeerRequest {
			return
		}
		request := make([]byte, n)
		if _, err := io.ReadFull(c, request); err != nil {
			return
		}
		frame, body, send, err := p.answer(request)
		if err != nil {
			return // a broker closes, too
		}
		if send == nil {
			if !write(c, frame) {
				return
			}
		} else if !send(p, c, frame, body) {
			return
		}
	}
}

// answer makes the frame that answers a request, says where its body begins, and how to send it if not as it is.
func (p *FaultyPeer) answer(request []byte) (frame []byte, body int, send func(*FaultyPeer, *net.TCPConn, []byte, int) bool, err error) {
	key, version := int16(binary.BigEndian.Uint16(request)), int16(binary.BigEndian.Uint16(request[2:]))
	req := kmsg.RequestForKey(key)
	if a, ok := req.(*kmsg.ApiVersionsRequest); ok && version > a.MaxVersion() {
		refusal := kmsg.NewPtrApiVersionsResponse() // of version 0, as a broker refuses (KIP-511)
		refusal.ErrorCode = unsupportedVersion
		return resized(refusal.AppendTo(append(make([]byte, 4), request[4:8]...))), 8, nil, nil
	}
	if req == nil || version < 0 || version > req.MaxVersion() {
		return nil, 0, nil, fmt.Errorf("key %d version %d", key, version)
	}
	req.SetVersion(version)
	if err := readRequest(req, request); err != nil {
		return nil, 0, nil, err
	}
	resp := req.ResponseKind()
	resp.SetVersion(version)
	switch m := resp.(type) {
	case *kmsg.ApiVersionsResponse:
		for _, k := range []kmsg.Request{kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrMetadataRequest(), kmsg.NewPtrFindCoordinatorRequest()} {
			a := kmsg.NewApiVersionsResponseApiKey()
			a.ApiKey, a.MaxVersion = k.Key(), k.MaxVersion()
			m.ApiKeys = append(m.ApiKeys, a)
		}
	case *kmsg.FindCoordinatorResponse:
		m.NodeID, m.Host, m.Port = 1, loopback, int32(p.port)
	case *kmsg.MetadataResponse:
		p.describe(req.(*kmsg.MetadataRequest), m)
		p.mu.Lock()
		fault, nth := p.fault, p.nth
		p.nth++
		p.mu.Unlock()
		if fault.edit != nil {
			fault.edit(p, nth, m)
		}
		send = fault.send
	default:
		return nil, 0, nil, fmt.Errorf("key %d", key)
	}
	frame = append(make([]byte, 4, 512), request[4:8]...)
	if resp.IsFlexible() && key != int16(kmsg.ApiVersions) {
		frame = append(frame, 0) // no tags in the header
	}
	body = len(frame)
	return resized(resp.AppendTo(frame)), body, send, nil
}

// readRequest reads a request's body behind its header.
func readRequest(req kmsg.Request, request []byte) error {
	at := 10
	if n := int16(binary.BigEndian.Uint16(request[8:])); n > 0 {
		at += int(n) // client id
	}
	if at > len(request) {
		return errors.New("the header is too short")
	}
	body := request[at:]
	if req.IsFlexible() {
		var err error
		if body, err = skipTags(body); err != nil {
			return err
		}
	}
	return req.ReadFrom(body)
}

// describe fills in three brokers, all at the peer's own address, and the topics that were asked for, or one.
func (p *FaultyPeer) describe(req *kmsg.MetadataRequest, m *kmsg.MetadataResponse) {
	m.ClusterID, m.ControllerID = kmsg.StringPtr(PeerClusterID), 1
	for id := range int32(3) {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = id+1, loopback, int32(p.port)
		m.Brokers = append(m.Brokers, b)
	}
	names := []string{}
	for _, t := range req.Topics {
		if t.Topic != nil {
			names = append(names, *t.Topic)
		}
	}
	if req.Topics == nil || req.Version == 0 && len(names) == 0 {
		names = []string{"orders"}
	}
	for i, name := range names {
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.TopicID = kmsg.StringPtr(name), [16]byte{1, byte(i >> 8), byte(i)}
		for j := range int32(3) {
			part := kmsg.NewMetadataResponseTopicPartition()
			part.Partition, part.Leader, part.LeaderEpoch = j, j+1, 7
			part.Replicas, part.ISR = []int32{1, 2, 3}, []int32{1, 2, 3}
			t.Partitions = append(t.Partitions, part)
		}
		m.Topics = append(m.Topics, t)
	}
}

// drip writes a byte at a time until the client has had enough or the peer is closed.
func drip(p *FaultyPeer, c *net.TCPConn, frame []byte, _ int) bool {
	for i := range frame {
		if !write(c, frame[i:i+1]) || sleep(p.ctx, dripEvery) != nil {
			return false
		}
	}
	return true
}

// resized sets a frame's length to what it is.
func resized(frame []byte) []byte {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

func write(c *net.TCPConn, b []byte) bool {
	_, err := c.Write(b)
	return err == nil
}
