// kafkago does the client job with segmentio/kafka-go.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/kvip/kvip/loadtest/clients/go/job"
	"github.com/segmentio/kafka-go"
)

func main() {
	job.Main(job.Library{Create: create, Producer: newProducer, Consumer: newConsumer, List: list})
}

func create(ctx context.Context, cfg job.Config) (string, error) {
	client := &kafka.Client{Addr: kafka.TCP(cfg.Bootstrap), Transport: &kafka.Transport{}}
	// -1: the brokers' own number of partitions and replicas.
	answer, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: cfg.Topic, NumPartitions: -1, ReplicationFactor: -1}}})
	if err != nil {
		return "", err
	}
	err = answer.Errors[cfg.Topic]
	if errors.Is(err, kafka.TopicAlreadyExists) {
		return "found by Client.CreateTopics", nil
	}
	return "created by Client.CreateTopics", err
}

func list(ctx context.Context, cfg job.Config) error {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	_, err := (&kafka.Client{Addr: kafka.TCP(cfg.Bootstrap), Transport: transport}).Metadata(ctx, &kafka.MetadataRequest{})
	return err
}

type producer struct{ writer *kafka.Writer }

func newProducer(cfg job.Config) (job.Producer, error) {
	return producer{&kafka.Writer{
		Addr:         kafka.TCP(cfg.Bootstrap),
		Topic:        cfg.Topic,
		RequiredAcks: kafka.RequireAll,
		BatchTimeout: 10 * time.Millisecond, // default 1 s
		MaxAttempts:  120,                   // with the default back-off of at most 1 s: two minutes
		Transport:    &kafka.Transport{},
	}}, nil
}

// Send waits in a goroutine: WriteMessages is how this library tells the fate of a record.
func (p producer) Send(ctx context.Context, key, value string, done func(error)) {
	go func() {
		done(p.writer.WriteMessages(ctx, kafka.Message{Key: []byte(key), Value: []byte(value)}))
	}()
}

func (p producer) Close() { _ = p.writer.Close() }

type consumer struct{ reader *kafka.Reader }

func newConsumer(cfg job.Config) (job.Consumer, error) {
	return consumer{kafka.NewReader(kafka.ReaderConfig{
		Brokers:     []string{cfg.Bootstrap},
		GroupID:     cfg.Group,
		Topic:       cfg.Topic,
		StartOffset: kafka.FirstOffset,
		MaxWait:     500 * time.Millisecond, // default 10 s
		// Without it each ReadMessage commits and, when that fails, drops the message it has read.
		CommitInterval: time.Second,
		SessionTimeout: 10 * time.Second, // default 30 s: how long a reader that joins again waits for its own former self
		MaxAttempts:    30,               // default 3: a killed broker stays in Metadata for about 9 s
	})}, nil
}

func (c consumer) Poll(ctx context.Context) ([]job.Record, error) {
	m, err := c.reader.ReadMessage(ctx)
	if err != nil {
		return nil, err
	}
	return []job.Record{{Key: string(m.Key), Value: string(m.Value)}}, nil
}

func (c consumer) Close() { _ = c.reader.Close() }
