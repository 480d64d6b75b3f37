package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/floor"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/lab"
	"github.com/kvip/kvip/loadtest/scenario"
)

// createTopics creates all topics with one request and waits until every node answers with a leader for each partition.
func createTopics(ctx context.Context, k *lab.Kafka, topics, partitions int) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.SetVersion(5)
	req.TimeoutMillis = 30_000
	for i := range topics {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = topicName(i), int32(partitions), 3
		req.Topics = append(req.Topics, t)
	}
	resp, err := lab.Exchange(ctx, k.Node(0).Addr(), req)
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
		if t.ErrorCode != 0 {
			return fmt.Errorf("create topic %s: error %d", t.Topic, t.ErrorCode)
		}
	}
	for _, node := range k.Nodes() {
		if err := waitForTopics(ctx, node.Addr(), topics, partitions); err != nil {
			return err
		}
	}
	return nil
}

// waitForTopics asks until the answer holds every partition with a leader.
func waitForTopics(ctx context.Context, addr string, topics, partitions int) error {
	cfg := scenario.Defaults()
	last := error(nil)
	for ctx.Err() == nil {
		var m kafka.Metadata
		frame, err := ask(ctx, addr, kafka.MetadataRequest(cfg.MetadataVersion, cfg.ClientID, kafka.Lookup{All: true}))
		if err == nil {
			var body []byte
			if _, body, err = kafka.Header(kafka.KeyMetadata, cfg.MetadataVersion, frame); err == nil {
				err = m.Decode(cfg.MetadataVersion, body)
			}
		}
		if err == nil {
			led := 0
			for _, t := range m.Topics {
				for _, p := range t.Partitions {
					if p.ErrorCode == 0 && p.Leader >= 0 {
						led++
					}
				}
			}
			if led == topics*partitions && len(m.Brokers) == 3 {
				return nil
			}
			err = fmt.Errorf("%d of %d partitions have a leader, %d brokers are listed", led, topics*partitions, len(m.Brokers))
		}
		last = fmt.Errorf("%s: %w", addr, err)
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			break
		}
	}
	return fmt.Errorf("%w; last answer: %w", context.Cause(ctx), last)
}

// capture asks a broker what the load will ask and returns its answers for the floor.
func capture(ctx context.Context, addr string) ([]floor.Answer, error) {
	cfg := scenario.Defaults()
	requests := [][]byte{kafka.APIVersionsRequest(cfg.APIVersionsVersion, cfg.ClientID, cfg.Software)}
	for _, all := range []bool{true, false} {
		requests = append(requests, kafka.MetadataRequest(cfg.MetadataVersion, cfg.ClientID, operation{all: all}.lookup()))
	}
	var answers []floor.Answer
	for _, request := range requests {
		frame, err := ask(ctx, addr, request)
		if err != nil {
			return nil, err
		}
		answers = append(answers, floor.Answer{
			Key: int16(binary.BigEndian.Uint16(request[4:])), Version: int16(binary.BigEndian.Uint16(request[6:])),
			RequestSize: len(request) - 4, Response: frame,
		})
	}
	return answers, nil
}

// ask sends one request on a connection of its own and returns the answer's frame without its length.
func ask(ctx context.Context, addr string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, fmt.Errorf("%s: answer to key %d: %w", addr, binary.BigEndian.Uint16(request[4:]), err)
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	if size < 4 || size > 100<<20 {
		return nil, fmt.Errorf("%s: answer of %d bytes", addr, size)
	}
	frame := make([]byte, size)
	_, err = io.ReadFull(c, frame)
	return frame, err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
