package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const maxAnswer = 64 << 20 // bytes; a frame that claims more is not an answer

// Exchange sends one request, at the version set in it, to addr on a connection of its own and returns the answer.
func Exchange(ctx context.Context, addr string, req kmsg.Request) (kmsg.Response, error) {
	what := func(err error) error {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("lab: %s v%d to %s: %w", kmsg.NameForKey(req.Key()), req.GetVersion(), addr, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, what(err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()

	const correlation = 7
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("kvip-lab")).AppendRequest(nil, req, correlation)
	if _, err := conn.Write(frame); err != nil {
		return nil, what(err)
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, what(err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxAnswer {
		return nil, what(fmt.Errorf("a frame of %d bytes is no answer", size))
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, what(err)
	}
	if got := int32(binary.BigEndian.Uint32(body)); got != correlation {
		return nil, what(fmt.Errorf("answer has correlation id %d, not %d", got, correlation))
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	body = body[4:]
	if resp.IsFlexible() && kmsg.Key(resp.Key()) != kmsg.ApiVersions {
		if body, err = skipTags(body); err != nil {
			return nil, what(err)
		}
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, what(err)
	}
	return resp, nil
}

// skipTags steps over the tagged fields of a flexible response header (KIP-482).
func skipTags(b []byte) ([]byte, error) {
	short := errors.New("answer ends inside its header's tagged fields")
	uvarint := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	count, ok := uvarint()
	for ; ok && count > 0; count-- {
		if _, ok = uvarint(); !ok {
			break
		}
		var size uint64
		if size, ok = uvarint(); ok {
			if ok = size <= uint64(len(b)); ok {
				b = b[size:]
			}
		}
	}
	if !ok {
		return nil, short
	}
	return b, nil
}

// metadata asks for the brokers, the controller and the given topics, at the newest version that Kafka 1.1 has too.
func metadata(ctx context.Context, addr string, topics ...string) (*kmsg.MetadataResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("no answer within 2 s"))
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(5)
	req.Topics = []kmsg.MetadataRequestTopic{} // nil would ask for all
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := Exchange(ctx, addr, req)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.MetadataResponse), nil
}

// lists says what is wrong with an answer of an INTERNAL listener when it does not list every wanted node or, when exactly
// is set, lists others.
func lists(m *kmsg.MetadataResponse, want []*Node, exactly bool) error {
	at := make(map[int32]string, len(m.Brokers))
	for _, b := range m.Brokers {
		at[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	for _, n := range want {
		if got := at[n.ID]; got != n.internal {
			return fmt.Errorf("it does not list %s at %s, only %v", n.Name(), n.internal, at)
		}
	}
	if exactly && len(at) != len(want) {
		return fmt.Errorf("it still lists nodes that are down: %v", at)
	}
	if m.ControllerID < 0 {
		return errors.New("it knows no controller")
	}
	return nil
}

// CreateTopic creates a topic and returns once every running node has a leader and rf replicas in sync for each partition.
func (k *Kafka) CreateTopic(ctx context.Context, name string, partitions, rf int) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(partitions), int16(rf)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.SetVersion(2) // the newest of Kafka 1.1, the oldest of Kafka 4
	req.TimeoutMillis = 10_000
	req.Topics = append(req.Topics, t)
	maybe := false // an earlier try may have created it
	if err := k.poll(ctx, "create topic "+name, func() error {
		running := k.running()
		if len(running) == 0 {
			return errNoneRunning
		}
		m, err := metadata(ctx, running[0].internal)
		if err != nil {
			return err
		}
		to := running[0]
		if i := slices.IndexFunc(running, func(n *Node) bool { return n.ID == m.ControllerID }); i >= 0 {
			to = running[i] // on ZooKeeper only the controller creates topics
		}
		resp, err := Exchange(ctx, to.internal, req)
		if err != nil {
			maybe = true
			return err
		}
		got := resp.(*kmsg.CreateTopicsResponse).Topics
		if len(got) != 1 {
			return fmt.Errorf("%s answered for %d topics", to.Name(), len(got))
		}
		err = kerr.ErrorForCode(got[0].ErrorCode)
		if maybe && errors.Is(err, kerr.TopicAlreadyExists) {
			return nil
		}
		maybe = maybe || errors.Is(err, kerr.RequestTimedOut)
		if err != nil && !kerr.IsRetriable(err) {
			detail := ""
			if got[0].ErrorMessage != nil {
				detail = ": " + *got[0].ErrorMessage
			}
			return permanent{fmt.Errorf("%s: %w%s", to.Name(), err, detail)}
		}
		return err
	}); err != nil {
		return err
	}
	return k.poll(ctx, "wait for topic "+name, func() error {
		for _, n := range k.running() {
			m, err := metadata(ctx, n.internal, name)
			if err != nil {
				return err
			}
			if err := complete(m, partitions, rf); err != nil {
				return fmt.Errorf("%s: %w", n.Name(), err)
			}
		}
		return nil
	})
}

func complete(m *kmsg.MetadataResponse, partitions, rf int) error {
	if len(m.Topics) != 1 {
		return fmt.Errorf("%d topics in an answer for one", len(m.Topics))
	}
	t := m.Topics[0]
	if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
		return err
	}
	if len(t.Partitions) != partitions {
		return fmt.Errorf("%d of %d partitions", len(t.Partitions), partitions)
	}
	for _, p := range t.Partitions {
		if p.ErrorCode != 0 || p.Leader < 0 || len(p.ISR) != rf {
			return fmt.Errorf("partition %d: leader %d, in sync %v, error %d", p.Partition, p.Leader, p.ISR, p.ErrorCode)
		}
	}
	return nil
}
