// Package clients runs real Kafka client libraries as small programs that are given one bootstrap address and do a
// whole job: [All] lists them, [Client.Install] makes one ready in the lab's cache, [Client.Run] runs it and returns its
// verdict. README.md beside this file has what the programs promise and how to run one by hand.
//
// The programs are told a bootstrap address and nothing else, so whatever stands there (a broker, a gateway) is judged
// by what the library's users would see. The package knows nothing of kvip.
package clients

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// Client is one client library in one release.
type Client struct {
	Name    string
	Library string // package and version, as its registry names them

	// Kafka4 and Legacy say which brokers it is tried on: Kafka 4, which serves clients from 2.1 on (KIP-896), and Kafka
	// 1.1.1. Both can be set.
	Kafka4, Legacy bool

	// Extended clients are a second release or another protocol of a library that is in the core list already.
	Extended bool

	program program
}

// program is how one kind of client is made ready and started.
type program interface {
	// install makes it ready, once; called again it only looks. It returns the command line to which the flags of
	// README.md are added, and what to add to the environment.
	install(ctx context.Context) (command, env []string, err error)
}

// All is every client. Adding one means adding its row here, and its program if its library is new.
var All = []Client{
	{Name: "java-4.4", Library: "kafka-clients 4.4.0", Kafka4: true, program: java{version: "4.4.0"}},
	{Name: "java-3.9", Library: "kafka-clients 3.9.2", Kafka4: true, program: java{version: "3.9.2"}},
	{Name: "java-2.8", Library: "kafka-clients 2.8.2", Kafka4: true, program: java{version: "2.8.2"}},
	{Name: "java-1.1", Library: "kafka-clients 1.1.1", Legacy: true, program: java{version: "1.1.1", before20: true}},
	{Name: "java-0.10.2", Library: "kafka-clients 0.10.2.2", Legacy: true, program: java{version: "0.10.2.2", before20: true}},
	{Name: "confluent-kafka", Library: "confluent-kafka 2.16.1 (librdkafka 2.16.0)", Kafka4: true, program: python{"confluent.py", "confluent-kafka.txt"}},
	{Name: "kcat", Library: "Debian's kcat (librdkafka)", Kafka4: true, Legacy: true, program: kcat{}},
	{Name: "kafka-python-3.0", Library: "kafka-python 3.0.12", Kafka4: true, program: python{"kafka_python.py", "kafka-python-3.0.txt"}},
	{Name: "kafka-python-2.0.2", Library: "kafka-python 2.0.2", Kafka4: true, Legacy: true, program: python{"kafka_python.py", "kafka-python-2.0.2.txt"}},
	{Name: "aiokafka", Library: "aiokafka 0.14.0", Kafka4: true, program: python{"aio.py", "aiokafka.txt"}},
	{Name: "kafkajs", Library: "kafkajs 2.2.4", Kafka4: true, program: node{}},
	{Name: "sarama", Library: "IBM/sarama 1.61.1", Kafka4: true, program: golang{pkg: "sarama"}},
	{Name: "franz-go", Library: "twmb/franz-go 1.22.3", Kafka4: true, program: golang{pkg: "franz"}},
	{Name: "kafka-go", Library: "segmentio/kafka-go 0.4.51", Kafka4: true, program: golang{pkg: "kafkago"}},
	{Name: "sarama-1.38", Library: "Shopify/sarama 1.38.1", Kafka4: true, Extended: true, program: golang{pkg: "sarama", modfile: "sarama-1.38.mod"}},
	{Name: "java-4.4-kip848", Library: "kafka-clients 4.4.0, group.protocol=consumer", Kafka4: true, Extended: true,
		program: java{version: "4.4.0", consumer: "group.protocol=consumer"}},
}

// Install makes the client ready to run: it fetches the library from its registry and builds the program, into the
// cache of loadtest/lab. It is safe to call from several goroutines and processes at once; what is there is kept.
func (c Client) Install(ctx context.Context) error {
	if _, _, err := c.program.install(ctx); err != nil {
		return fmt.Errorf("install client %s: %w", c.Name, err)
	}
	return nil
}

// installsAtOnce is moderate: registries and two cores gain nothing from more.
const installsAtOnce = 2

// InstallAll installs the given clients, or [All] when none is given, and goes on past those that fail.
func InstallAll(ctx context.Context, which ...Client) error {
	if len(which) == 0 {
		which = All
	}
	errs := make([]error, len(which))
	var group errgroup.Group
	group.SetLimit(installsAtOnce)
	for i, c := range which {
		group.Go(func() error {
			errs[i] = c.Install(ctx)
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}
