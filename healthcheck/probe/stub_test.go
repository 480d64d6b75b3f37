package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stub is a broker made by hand: it answers ApiVersions and Metadata as its fields say, or with whatever bytes.
type stub struct {
	ln net.Listener
	wg sync.WaitGroup

	mu         sync.Mutex
	apis       map[int16]int16 // max version by key; min is 0
	brokers    []kmsg.MetadataResponseBroker
	fenced     []kmsg.DescribeClusterResponseBroker
	clusterID  string
	controller int32
	silent35   bool // like brokers before 2.4: error 35 without a key-18 entry
	// raw replaces the answer to a key by bytes, with the request's correlation id in place of its bytes 4-8 when
	// there is one; nil bytes are no answer, empty ones a close.
	raw      map[int16][]byte
	asked    []request
	accepted int
	conns    []net.Conn
	ends     []error // how each connection ended, read side
}

type request struct{ key, version int16 }

// kafka43 is what matters of a current broker's table.
func kafka43() map[int16]int16 { return map[int16]int16{0: 13, 1: 18, 3: 13, 10: 6, 18: 4, 60: 2} }

func newStub(t testing.TB) *stub {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stub{ln: ln, apis: kafka43(), clusterID: "A", controller: 1, raw: map[int16][]byte{}}
	s.brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "127.0.0.1", Port: s.port()}, {NodeID: 2, Host: "other.example.com", Port: 9092}}
	s.wg.Go(s.accept)
	t.Cleanup(s.stop)
	return s
}

func (s *stub) addr() string { return s.ln.Addr().String() }
func (s *stub) port() int32  { return int32(s.ln.Addr().(*net.TCPAddr).Port) }

func (s *stub) set(f func(*stub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *stub) stop() {
	_ = s.ln.Close()
	s.cut()
	s.wg.Wait()
}

// cut closes all connections.
func (s *stub) cut() {
	s.set(func(s *stub) {
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.conns = nil
	})
}

func (s *stub) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.set(func(s *stub) { s.accepted++; s.conns = append(s.conns, c) })
		s.wg.Go(func() {
			err := s.serve(c)
			s.set(func(s *stub) { s.ends = append(s.ends, err) })
			_ = c.Close()
		})
	}
}

func (s *stub) serve(c net.Conn) error {
	for {
		var size [4]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return err
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c, frame); err != nil {
			return err
		}
		answer := s.answer(frame)
		if answer != nil && len(answer) == 0 {
			return errors.New("closed on purpose")
		}
		if _, err := c.Write(answer); err != nil {
			return err
		}
	}
}

func (s *stub) answer(frame []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, version := int16(binary.BigEndian.Uint16(frame)), int16(binary.BigEndian.Uint16(frame[2:]))
	s.asked = append(s.asked, request{key, version})
	correlation := frame[4:8]
	if raw, ok := s.raw[key]; ok {
		raw = bytes.Clone(raw)
		if len(raw) >= 8 && binary.BigEndian.Uint32(raw[4:]) == 0 {
			copy(raw[4:8], correlation)
		}
		return raw
	}
	var body []byte
	switch key {
	case 18:
		body = s.apiVersions(version)
	case 3:
		body = s.metadata(version)
	case 60:
		body = s.describe(version)
	default:
		return []byte{}
	}
	return reply(correlation, body)
}

// reply makes a frame of a correlation id and what follows it.
func reply(correlation, rest []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(4+len(rest)))
	return append(append(out, correlation...), rest...)
}

func (s *stub) apiVersions(version int16) []byte {
	res := kmsg.NewPtrApiVersionsResponse()
	res.Version = version
	if version > s.apis[18] {
		res.Version, res.ErrorCode = 0, unsupportedVersion
		if !s.silent35 {
			res.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 18, MaxVersion: s.apis[18]}}
		}
		return res.AppendTo(nil)
	}
	// Not in order: that is no broker's promise.
	for _, key := range slices.Backward(slices.Sorted(maps.Keys(s.apis))) {
		res.ApiKeys = append(res.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: s.apis[key]})
	}
	if version >= 3 {
		res.SupportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{{Name: "z", MaxVersion: 1}, {Name: "a", MaxVersion: 2}}
		res.FinalizedFeaturesEpoch = 7
	}
	return res.AppendTo(nil)
}

func (s *stub) metadata(version int16) []byte {
	res := kmsg.NewPtrMetadataResponse()
	res.Version, res.Brokers, res.ClusterID, res.ControllerID = version, s.brokers, &s.clusterID, s.controller
	if version >= 9 {
		return res.AppendTo([]byte{0})
	}
	return res.AppendTo(nil)
}

func (s *stub) describe(version int16) []byte {
	res := kmsg.NewPtrDescribeClusterResponse()
	res.Version, res.ClusterID, res.ControllerID = version, s.clusterID, s.controller
	for _, b := range s.brokers {
		res.Brokers = append(res.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: b.NodeID, Host: b.Host, Port: b.Port})
	}
	res.Brokers = append(res.Brokers, s.fenced...)
	return res.AppendTo([]byte{0})
}

func (s *stub) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// prober makes a prober of the stub, changed by with.
func (s *stub) prober(t testing.TB, with func(*Config)) *Prober {
	t.Helper()
	cfg := Config{Addr: s.addr(), NodeID: AnyNode}
	if with != nil {
		with(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// probe runs once within two seconds.
func probe(t testing.TB, p *Prober) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return p.Run(ctx)
}
