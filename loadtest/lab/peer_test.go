package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/failure"
)

// visitor is a client that keeps one connection, asks twice and dials who it is told of.
type visitor struct {
	conn    net.Conn
	checker *check.Checker
	memory  check.Memory
}

// visit bootstraps from addr and says what went wrong first.
func visit(addr string, version int16) failure.Class {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return failure.OfConnect(err)
	}
	defer conn.Close()
	v := &visitor{conn: conn, checker: check.New(check.Expect{})}
	hello := kmsg.NewPtrApiVersionsRequest()
	hello.SetVersion(3)
	hello.ClientSoftwareName, hello.ClientSoftwareVersion = "visitor", "1"
	if _, class := v.ask(hello, 1); class != failure.None {
		return class
	}
	for i := range 2 {
		req := kmsg.NewPtrMetadataRequest()
		req.SetVersion(version)
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr("orders")
		req.Topics = append(req.Topics, topic)
		body, class := v.ask(req, int32(2+i))
		if class != failure.None {
			return class
		}
		view := v.checker.Metadata(version, 1, body)
		if view.Fault != failure.None {
			return view.Fault
		}
		if class, _ := v.checker.Accept(&v.memory, view); class != failure.None {
			return class
		}
		m := kmsg.NewPtrMetadataResponse()
		m.SetVersion(version)
		if err := m.ReadFrom(body); err != nil {
			return failure.Malformed
		}
		if m.Topics[0].Partitions[0].Leader != 1 { // as a healthy peer says
			return failure.Untrue
		}
		for _, b := range m.Brokers {
			c, err := net.DialTimeout("tcp", hostPort(b.Host, int(b.Port)), time.Second)
			if err != nil {
				return failure.StaleAddress
			}
			_ = c.Close()
		}
	}
	return failure.None
}

// ask returns the answer's body behind its header.
func (v *visitor) ask(req kmsg.Request, id int32) ([]byte, failure.Class) {
	if _, err := v.conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, id)); err != nil {
		return nil, failure.OfStream(err)
	}
	_ = v.conn.SetReadDeadline(time.Now().Add(250 * time.Millisecond))
	ended := func(n int, err error) failure.Class {
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return failure.Timeout
		case errors.Is(err, io.EOF) && n == 0:
			return failure.Closed
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return failure.Short
		}
		return failure.OfStream(err)
	}
	head := make([]byte, 4)
	if n, err := io.ReadFull(v.conn, head); err != nil {
		return nil, ended(n, err)
	}
	size := int32(binary.BigEndian.Uint32(head))
	if size < 4 || size > 1<<20 {
		return nil, failure.Malformed
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(v.conn, frame); err != nil {
		return nil, ended(1, err)
	}
	if int32(binary.BigEndian.Uint32(frame)) != id {
		return nil, failure.WrongID
	}
	_ = v.conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
	if n, _ := v.conn.Read(head[:1]); n > 0 {
		return nil, failure.Unasked
	}
	if req.IsFlexible() && req.Key() != int16(kmsg.ApiVersions) {
		return frame[5:], failure.None
	}
	return frame[4:], failure.None
}

func TestEveryPeerFailsItsClientsInItsOwnWay(t *testing.T) {
	for kind, fault := range PeerFaults() {
		t.Run(kind, func(t *testing.T) {
			p, err := StartFaultyPeer(kind)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := errors.Join(p.Close(), p.Close()); err != nil {
					t.Error(err)
				}
			}()
			if got := visit(p.Addr(), 12); got != fault.Class {
				t.Errorf("a client calls it %s, not %s (%s)", got, fault.Class, fault.About)
			}
			if err := p.Set(Healthy); err != nil {
				t.Fatal(err)
			}
			if got := visit(p.Addr(), 12); got != failure.None {
				t.Errorf("after the fault: %s", got)
			}
		})
	}
	if _, err := StartFaultyPeer("lazy"); err == nil {
		t.Error("an unknown fault was planted")
	}
}

func TestAPeerCoversEveryClassThatATargetCanCause(t *testing.T) {
	planted := map[failure.Class]bool{}
	for _, f := range PeerFaults() {
		planted[f.Class] = true
	}
	for c := failure.None; c < failure.Classes; c++ {
		if !planted[c] && !c.Local() && c != failure.Unreachable {
			t.Errorf("no peer plants %s", c)
		}
	}
}

func TestAHealthyPeerAnswersEveryVersion(t *testing.T) {
	p, err := StartFaultyPeer(Healthy)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for version := range int16(14) {
		if got := visit(p.Addr(), version); got != failure.None {
			t.Errorf("Metadata v%d: %s", version, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for version := range int16(5) {
		req := kmsg.NewPtrApiVersionsRequest()
		req.SetVersion(version)
		req.ClientSoftwareName, req.ClientSoftwareVersion = "visitor", "1"
		if resp, err := Exchange(ctx, p.Addr(), req); err != nil || resp.(*kmsg.ApiVersionsResponse).ErrorCode != 0 {
			t.Errorf("ApiVersions v%d: %+v, %v", version, resp, err)
		}
	}
}
