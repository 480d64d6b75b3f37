package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"time"
)

// DefaultKafkaZK is the version that [StartKafkaZK] runs when none is given.
const DefaultKafkaZK = "1.1.1"

// zookeeper is the single ZooKeeper server under a cluster, from the jars of its Kafka.
type zookeeper struct {
	*Process
	addr string
}

func (k *Kafka) startZooKeeper(ctx context.Context) error {
	const name = "zookeeper"
	port, err := k.ports.reserve(loopback)
	if err != nil {
		return err
	}
	if err := os.Mkdir(k.path(name), 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	file := k.path(name, "zookeeper.properties")
	if err := writeProperties(file, map[string]string{
		"dataDir": k.path(name, "data"), "clientPort": strconv.Itoa(port), "clientPortAddress": loopback,
		"maxClientCnxns": "0", "tickTime": "500", // sessions are given up at the next tick
		"maxSessionTimeout": "60000",
	}); err != nil {
		return err
	}
	p, err := k.startJava(name, k.apps[k.cfg.Version], "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	if err != nil {
		return err
	}
	k.zk = &zookeeper{Process: p, addr: hostPort(loopback, port)}
	return k.poll(ctx, "wait for ZooKeeper", func() error {
		if err := p.ended(); err != nil {
			return permanent{err}
		}
		answer, err := k.zk.command(ctx, "ruok")
		if err == nil && answer != "imok" {
			err = fmt.Errorf("it answered %q to ruok", answer)
		}
		return err
	})
}

// command sends one of ZooKeeper's four-letter commands.
func (z *zookeeper) command(ctx context.Context, word string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("no answer within 2 s"))
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", z.addr)
	if err != nil {
		return "", fmt.Errorf("ZooKeeper: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(conn, word); err != nil {
		return "", fmt.Errorf("ZooKeeper: %s: %w", word, err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		return "", fmt.Errorf("ZooKeeper: %s: %w", word, err)
	}
	return string(b), nil
}

// forgot returns nil once no session holds the registration of broker id any more.
func (z *zookeeper) forgot(ctx context.Context, id int32) error {
	dump, err := z.command(ctx, "dump")
	if err != nil {
		return err
	}
	if regexp.MustCompile(fmt.Sprintf(`(?m)^\s*/brokers/ids/%d\s*$`, id)).MatchString(dump) {
		return fmt.Errorf("/brokers/ids/%d is still there", id)
	}
	return nil
}
