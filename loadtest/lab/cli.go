package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Command is `kvip lab`: flags for kong, and Run.
type Command struct {
	Kafka      string            `help:"Version of Kafka: 4.3.1 (the default), 4.4.0, 3.9.1, 1.1.1 (on ZooKeeper), or none." default:"4.3.1" placeholder:"VERSION"`
	Nodes      int               `help:"How many brokers." default:"3"`
	Racks      []string          `help:"Their racks, by broker."`
	Production bool              `help:"Run the brokers as in production, not as they start fastest."`
	Set        map[string]string `help:"Properties of every broker, key=value;key=value."`
	LogLevel   string            `help:"Level of the brokers' logs." default:"WARN"`

	SASL        []string          `name:"sasl" help:"Ask clients to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512." placeholder:"MECHANISM"`
	Users       map[string]string `help:"Who may log in, name=password;name=password." placeholder:"NAME=PASSWORD"`
	TLS         bool              `name:"tls" help:"Encrypt; keys are made and their directory is printed."`
	ClientCerts bool              `help:"Ask clients for a certificate, too."`

	Consul  bool   `help:"Start Consul and register the brokers in it."`
	Service string `help:"The service's name in Consul." default:"kafka-orders"`

	Peers   []string `help:"Start a faulty peer of each kind; 'list' shows the kinds." placeholder:"KIND"`
	Control string   `help:"Serve HTTP here to act on the cluster while it runs: POST /nodes/2/kill (stop, pause, resume, restart), /nodes?rack=d, /topics/NAME?partitions=6, /elect, /reassign." placeholder:"HOST:PORT"`
}

// withoutKafka is the version that starts no cluster.
const withoutKafka = "none"

// Run starts the parts, prints their addresses to stdout, and takes them down again when ctx ends. Nothing is left behind.
func (c *Command) Run(ctx context.Context, stdout io.Writer) (err error) {
	if slices.Contains(c.Peers, "list") {
		return listPeers(stdout)
	}
	if c.Kafka == withoutKafka && (c.Consul || c.Control != "" || len(c.Peers) == 0) {
		return errors.New("lab: --kafka none leaves nothing to run but --peers, and goes without --consul and --control")
	}
	var parts closers
	defer func() { err = errors.Join(err, parts.close()) }()
	if c.Kafka != withoutKafka {
		if err := c.startKafka(ctx, stdout, &parts); err != nil {
			return interrupted(ctx, err)
		}
	}
	for _, kind := range c.Peers {
		p, err := StartFaultyPeer(kind)
		if err != nil {
			return err
		}
		parts.add(p.Close)
		fmt.Fprintf(stdout, "peer %s: %s (%s)\n", kind, p.Addr(), peerFaults[kind].About)
	}
	fmt.Fprintln(stdout, "Ctrl-C stops it and removes its files")
	<-ctx.Done()
	return nil
}

func (c *Command) startKafka(ctx context.Context, stdout io.Writer, parts *closers) error {
	cfg, err := c.config(stdout, parts)
	if err != nil {
		return err
	}
	start := StartKafka
	if b, ok := kafkaBuilds[c.Kafka]; ok && b.zookeeper {
		start = StartKafkaZK
	}
	k, err := start(ctx, cfg)
	if err != nil {
		return err
	}
	parts.add(k.Close)
	fmt.Fprintln(stdout, "bootstrap.servers:", strings.Join(k.Bootstrap(), ","))
	if k.ZK() != "" {
		fmt.Fprintln(stdout, "ZooKeeper:", k.ZK())
	} else {
		fmt.Fprintln(stdout, "cluster id:", k.ClusterID())
	}
	for _, n := range k.Nodes() {
		fmt.Fprintf(stdout, "broker %d: %s, rack %q, pid %d, log %s\n", n.ID, n.Addr(), n.Rack, n.Pid(), n.LogPath())
	}
	var consul *Consul
	if c.Consul {
		if consul, err = StartConsul(ctx, ConsulConfig{}); err != nil {
			return err
		}
		parts.add(consul.Close)
		for _, n := range k.Nodes() {
			if err := consul.Register(ctx, n.Service(c.Service)); err != nil {
				return err
			}
		}
		fmt.Fprintf(stdout, "Consul: %s, service %s, http://%s/v1/health/service/%s\n", consul.Addr(), c.Service, consul.Addr(), url.PathEscape(c.Service))
	}
	if c.Control == "" {
		return nil
	}
	control, err := startControl(c.Control, k, consul, c.Service)
	if err != nil {
		return err
	}
	parts.add(control.Close)
	fmt.Fprintf(stdout, "control: http://%s/\n", control.Addr())
	return nil
}

// config is the cluster's; keys for clients are written to a directory that goes with the rest.
func (c *Command) config(stdout io.Writer, parts *closers) (KafkaConfig, error) {
	if c.Nodes < 1 {
		return KafkaConfig{}, fmt.Errorf("lab: --nodes %d: write 1 or more", c.Nodes)
	}
	cfg := KafkaConfig{
		Version: c.Kafka, Nodes: c.Nodes, Racks: c.Racks, LogLevel: c.LogLevel, Production: c.Production, ExtraProps: c.Set,
	}
	if len(c.SASL) == 0 && len(c.Users) == 0 && !c.TLS && !c.ClientCerts {
		return cfg, nil
	}
	cfg, keys, err := cfg.Secured(Security{Mechanisms: c.SASL, Users: c.Users, TLS: c.TLS, ClientCerts: c.ClientCerts})
	if err != nil || keys == nil {
		return cfg, err
	}
	dir, err := newRunDir()
	if err != nil {
		return cfg, err
	}
	parts.add(dir.remove)
	if err := keys.WriteFiles(dir.path); err != nil {
		return cfg, err
	}
	fmt.Fprintf(stdout, "keys: ca.pem, client.pem and client.key in %s\n", dir.path)
	return cfg, nil
}

func listPeers(stdout io.Writer) error {
	for _, kind := range slices.Sorted(maps.Keys(peerFaults)) {
		f := peerFaults[kind]
		if _, err := fmt.Fprintf(stdout, "%-14s %-14s %s\n", kind, f.Class, f.About); err != nil {
			return err
		}
	}
	return nil
}

// interrupted is nil when the start ended because it was asked to.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// closers are closed in the opposite order.
type closers struct{ all []func() error }

func (c *closers) add(f func() error) { c.all = append(c.all, f) }

func (c *closers) close() error {
	var errs []error
	for _, f := range slices.Backward(c.all) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
