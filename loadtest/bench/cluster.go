package main

import (
	"context"
	"fmt"
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
		frame, err := floor.Ask(ctx, addr, kafka.MetadataRequest(cfg.MetadataVersion, cfg.ClientID, kafka.Lookup{All: true}))
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

// requests are what the load will ask.
func requests() [][]byte {
	return requestsFor(operation{all: true}.lookup(), operation{all: false}.lookup())
}

func requestsFor(lookups ...kafka.Lookup) [][]byte {
	cfg := scenario.Defaults()
	all := [][]byte{kafka.APIVersionsRequest(cfg.APIVersionsVersion, cfg.ClientID, cfg.Software)}
	for _, l := range lookups {
		all = append(all, kafka.MetadataRequest(cfg.MetadataVersion, cfg.ClientID, l))
	}
	return all
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
