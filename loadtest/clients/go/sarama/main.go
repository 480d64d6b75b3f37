// sarama does the client job with IBM/sarama.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
	"github.com/kvip/kvip/loadtest/clients/go/job"
)

func main() {
	job.Main(job.Library{Create: create, Producer: newProducer, Consumer: newConsumer, List: list})
}

func config() *sarama.Config {
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0 // the default of 1.61; 1.38 needs it said
	conf.Producer.RequiredAcks = sarama.WaitForAll
	conf.Producer.Return.Successes = true
	conf.Producer.Retry.Backoff = 500 * time.Millisecond // with Max: two minutes, the other libraries' delivery timeout
	conf.Producer.Retry.Max = 240
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	// Without it 1.38 sends OffsetCommit v1, which Kafka 4 answers by closing.
	conf.Consumer.Offsets.Retention = time.Hour
	return conf
}

func create(_ context.Context, cfg job.Config) (string, error) {
	admin, err := sarama.NewClusterAdmin([]string{cfg.Bootstrap}, config())
	if err != nil {
		return "", err
	}
	defer admin.Close()
	// -1: the brokers' own number of partitions and replicas.
	err = admin.CreateTopic(cfg.Topic, &sarama.TopicDetail{NumPartitions: -1, ReplicationFactor: -1}, false)
	if errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return "found by the admin client", nil
	}
	return "created by the admin client", err
}

// list gives up at ctx's end; sarama's own timeouts then end what it left.
func list(ctx context.Context, cfg job.Config) error {
	result := make(chan error, 1)
	go func() {
		client, err := sarama.NewClient([]string{cfg.Bootstrap}, config())
		if err == nil {
			_, err = client.Topics()
			_ = client.Close()
		}
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type producer struct {
	async sarama.AsyncProducer
	topic string
}

func newProducer(cfg job.Config) (job.Producer, error) {
	async, err := sarama.NewAsyncProducer([]string{cfg.Bootstrap}, config())
	if err != nil {
		return nil, err
	}
	go func() {
		for m := range async.Successes() {
			m.Metadata.(func(error))(nil)
		}
	}()
	go func() {
		for e := range async.Errors() {
			e.Msg.Metadata.(func(error))(e.Err)
		}
	}()
	return producer{async, cfg.Topic}, nil
}

func (p producer) Send(_ context.Context, key, value string, done func(error)) {
	p.async.Input() <- &sarama.ProducerMessage{Topic: p.topic, Key: sarama.StringEncoder(key),
		Value: sarama.StringEncoder(value), Metadata: done}
}

func (p producer) Close() { p.async.AsyncClose() }

// consumer turns sarama's push into polls.
type consumer struct {
	group   sarama.ConsumerGroup
	records chan job.Record
	errs    chan error
	stop    context.CancelFunc
	stopped chan struct{}
}

func newConsumer(cfg job.Config) (job.Consumer, error) {
	group, err := sarama.NewConsumerGroup([]string{cfg.Bootstrap}, cfg.Group, config())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &consumer{group, make(chan job.Record), make(chan error), stop, make(chan struct{})}
	go func() {
		defer close(c.stopped)
		for ctx.Err() == nil { // Consume returns at every rebalance
			if err := group.Consume(ctx, []string{cfg.Topic}, c); err != nil {
				select {
				case c.errs <- err:
				case <-ctx.Done():
				}
			}
		}
	}()
	return c, nil
}

func (c *consumer) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (c *consumer) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *consumer) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		select {
		case c.records <- job.Record{Key: string(m.Key), Value: string(m.Value)}:
			session.MarkMessage(m, "")
		case <-session.Context().Done():
			return nil
		}
	}
	return nil
}

func (c *consumer) Poll(ctx context.Context) ([]job.Record, error) {
	select {
	case r := <-c.records:
		return []job.Record{r}, nil
	case err := <-c.errs:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *consumer) Close() {
	c.stop()
	<-c.stopped
	_ = c.group.Close()
}
