// Package demo shows the whole of kvip in one process: a small Kafka cluster, a pool over it, a VIP in front, and a real
// client that knows only the VIP's address.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/zap"

	"github.com/kvip/kvip/cmd/kvip/internal/admin"
	"github.com/kvip/kvip/cmd/kvip/internal/config"
	"github.com/kvip/kvip/cmd/kvip/internal/run"
	"github.com/kvip/kvip/discovery/provider"
)

// topic is what the demo's cluster has from the start.
const topic = "orders"

// Options are the demo's.
type Options struct {
	// Brokers is the cluster's size.
	Brokers int
	// Listen and Admin are host:port; port 0 takes a free one.
	Listen, Admin string
	// Once leaves after the proof instead of waiting for a signal.
	Once    bool
	Version string
	Out     io.Writer
	Log     *zap.Logger
	Level   zap.AtomicLevel
}

// Run shows the demo until ctx ends or a signal comes.
func Run(ctx context.Context, o Options) error {
	for flag, address := range map[string]string{"--listen": o.Listen, "--admin": o.Admin} {
		if err := checkFree(flag, address); err != nil {
			return err
		}
	}
	// The fake's brokers do not pass a request for the controller on, as a KRaft cluster's do, so they must not be taken for
	// such: they say that they are Kafka 3.2 on ZooKeeper, whose clients are told the one true controller.
	cluster, err := kfake.NewCluster(
		kfake.MaxVersions(kversion.V3_2_0()),
		kfake.NumBrokers(o.Brokers),
		kfake.ClusterID("kvip-demo"),
		kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(o.Brokers),
		kfake.SeedTopics(int32(2*o.Brokers), topic),
	)
	if err != nil {
		return fmt.Errorf("starting the Kafka cluster: %w", err)
	}
	defer cluster.Close()
	state, err := os.MkdirTemp("", "kvip-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)

	var proof error
	if o.Once {
		proof = errors.New("left before a client could bootstrap")
	}
	// The cluster is in this process: what has not worked by then never will.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	timer := time.AfterFunc(proofTimeout, func() { giveUp(errNotReady) })
	cfg := configuration(o, state, cluster.ListenAddrs())
	err = run.Serve(ctx, cfg, run.Options{
		Version: o.Version, Log: o.Log, Level: o.Level,
		Ready: func(ctx context.Context, st admin.Status, leave func()) {
			timer.Stop()
			if o.Once {
				defer leave()
			}
			proof = show(ctx, o, st, cluster.ListenAddrs())
		},
	})
	if err := errors.Join(err, notReady(ctx)); err != nil {
		return err
	}
	fmt.Fprintln(o.Out, "\nThe demo has ended cleanly.")
	return proof
}

// errNotReady is a demo in which no client could ever bootstrap.
var errNotReady = fmt.Errorf("no client could bootstrap within %s (-v shows kvip's log)", proofTimeout)

func notReady(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, errNotReady) {
		return err
	}
	return nil
}

// configuration is the kvip.yaml that the demo would have.
func configuration(o Options, state string, brokers []string) *config.Config {
	static := &provider.StaticConfig{Type: "static"}
	for _, b := range brokers {
		static.Brokers = append(static.Brokers, provider.StaticBroker{Address: b})
	}
	cfg := config.Defaults()
	cfg.Admin.Listen = o.Admin
	cfg.StateDir = state
	cfg.Drain.Timeout = 2 * time.Second
	pool := config.DefaultPool()
	pool.Name = "demo"
	pool.Discovery = config.Discovery{{SourceKeys: config.SourceKeys{Type: "static"}, Provider: static}}
	vip := config.DefaultVIP()
	vip.Name, vip.Pool, vip.Listen = "demo", "demo", o.Listen
	cfg.Pools, cfg.VIPs = []config.Pool{pool}, []config.VIP{vip}
	return &cfg
}

// show prints where everything is, lets a client prove it, and says what to try next.
func show(ctx context.Context, o Options, st admin.Status, brokers []string) error {
	vip := st.VIPs[0].Listen
	adminAddr := st.Admin
	fmt.Fprintf(o.Out, `kvip demo: %d Kafka brokers in this process, one pool over them, one VIP in front

  bootstrap.servers  %s
  brokers            %s
  status             kvip status --admin %s, or http://%[4]s/

A client (franz-go) that is told only bootstrap.servers=%[2]s and the topic, %[5]s:

`, len(brokers), vip, strings.Join(brokers, " "), adminAddr, topic)
	if err := prove(ctx, o.Out, vip); err != nil {
		if ctx.Err() != nil {
			return nil // told to leave meanwhile
		}
		return fmt.Errorf("the client failed: %w", err)
	}
	if o.Once {
		return nil
	}
	fmt.Fprintf(o.Out, `
Try it with your own client (topics are created when first used):

  kcat    kcat -b %[1]s -L
          kcat -b %[1]s -t %[2]s -C -o beginning -e
          echo hello | kcat -b %[1]s -t %[2]s -P
  Python  python3 -c "from kafka import KafkaConsumer as C; [print(m.value) for m in C('%[2]s', bootstrap_servers='%[1]s', auto_offset_reset='earliest', consumer_timeout_ms=3000)]"
  Java    kafka-console-consumer.sh --bootstrap-server %[1]s --topic %[2]s --from-beginning

Ctrl-C ends the demo.
`, vip, topic)
	return nil
}

// checkFree says, before anything starts, what to do about an address that cannot be bound.
func checkFree(flag, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%s %s: %w: choose another address, or any free port with %s 127.0.0.1:0", flag, address, err, flag)
	}
	return l.Close()
}
