// Command labctl runs the lab's parts by hand until Ctrl-C: a Kafka cluster and, when asked, a Consul agent in which its
// brokers are registered.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/kvip/kvip/loadtest/lab"
)

type options struct {
	Kafka     string   `default:"4.3.1" help:"Version of Kafka; 1.1.1 runs on ZooKeeper."`
	Nodes     int      `default:"3" help:"How many brokers."`
	Racks     []string `help:"Their racks."`
	Consul    bool     `help:"Start Consul, too, and register the brokers in it."`
	Service   string   `default:"kafka-orders" help:"The service's name in Consul."`
	LogLevel  string   `default:"WARN" help:"Level of the brokers' logs."`
	Benchmark bool     `help:"Run the brokers as in production, not as they start fastest."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Description("Starts Kafka, and Consul, for kvip's tests; Ctrl-C stops them and removes their files."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "labctl:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (fail error) {
	start := lab.StartKafka
	if o.Kafka == lab.DefaultKafkaZK {
		start = lab.StartKafkaZK
	}
	kafka, err := start(ctx, lab.KafkaConfig{
		Version: o.Kafka, Nodes: o.Nodes, Racks: o.Racks, LogLevel: o.LogLevel, Production: o.Benchmark,
	})
	if err != nil {
		return err
	}
	defer func() { fail = errors.Join(fail, kafka.Close()) }()
	fmt.Println("bootstrap.servers:", strings.Join(kafka.Bootstrap(), ","))
	if zk := kafka.ZK(); zk != "" {
		fmt.Println("ZooKeeper:", zk)
	}
	for _, n := range kafka.Nodes() {
		fmt.Printf("broker %d: %s, rack %q, pid %d, log %s\n", n.ID, n.Addr(), n.Rack, n.Pid(), n.LogPath())
	}
	if o.Consul {
		consul, err := lab.StartConsul(ctx, lab.ConsulConfig{})
		if err != nil {
			return err
		}
		defer func() { fail = errors.Join(fail, consul.Close()) }()
		for _, n := range kafka.Nodes() {
			if err := consul.Register(ctx, n.Service(o.Service)); err != nil {
				return err
			}
		}
		fmt.Printf("Consul: %s, service %s\n", consul.Addr(), o.Service)
	}
	fmt.Println("Ctrl-C stops it")
	<-ctx.Done()
	return nil
}
