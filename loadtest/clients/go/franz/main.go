// franz does the client job with franz-go.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/kvip/kvip/loadtest/clients/go/job"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	job.Main(job.Library{Create: create, Producer: newProducer, Consumer: newConsumer, List: list})
}

func create(ctx context.Context, cfg job.Config) (string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Bootstrap))
	if err != nil {
		return "", err
	}
	defer client.Close()
	// -1: the brokers' own number of partitions and replicas.
	_, err = kadm.NewClient(client).CreateTopic(ctx, -1, -1, nil, cfg.Topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return "found by the admin client", nil
	}
	return "created by the admin client", err
}

func list(ctx context.Context, cfg job.Config) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Bootstrap))
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = kadm.NewClient(client).ListTopics(ctx)
	return err
}

type producer struct {
	client *kgo.Client
	topic  string
}

func newProducer(cfg job.Config) (job.Producer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Bootstrap), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordDeliveryTimeout(2*time.Minute))
	return producer{client, cfg.Topic}, err
}

func (p producer) Send(ctx context.Context, key, value string, done func(error)) {
	p.client.Produce(ctx, &kgo.Record{Topic: p.topic, Key: []byte(key), Value: []byte(value)},
		func(_ *kgo.Record, err error) { done(err) })
}

func (p producer) Close() { p.client.Close() }

type consumer struct{ client *kgo.Client }

func newConsumer(cfg job.Config) (job.Consumer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(cfg.Bootstrap), kgo.ConsumerGroup(cfg.Group),
		kgo.ConsumeTopics(cfg.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	return consumer{client}, err
}

func (c consumer) Poll(ctx context.Context) ([]job.Record, error) {
	fetches := c.client.PollFetches(ctx)
	var records []job.Record
	fetches.EachRecord(func(r *kgo.Record) {
		records = append(records, job.Record{Key: string(r.Key), Value: string(r.Value)})
	})
	return records, fetches.Err()
}

func (c consumer) Close() { c.client.Close() }
