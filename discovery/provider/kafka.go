package provider

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/discovery"
)

const (
	kafkaMaxAnswer = 8 << 20 // thousands of brokers
	kafkaDial      = 2 * time.Second
	// kafkaMetadata is a version that every broker from 0.11 to 4.x serves, and the first that creates no topic.
	kafkaMetadata = 4
	// kafkaKnown bounds the brokers of the last answer that are asked when no seed answers.
	kafkaKnown = 16
)

// KafkaConfig is `discovery: {type: kafka, seeds: [...]}`: the brokers that the cluster itself lists, with racks and node
// ids. When no seed answers, brokers of the last answer are asked.
type KafkaConfig struct {
	Type string `yaml:"type"`
	// Seeds are host:port of some brokers, on the listener that clients are to be told.
	Seeds []string `yaml:"seeds"`
	// Interval is how often one of them is asked.
	Interval time.Duration `yaml:"interval"`
}

// Validate implements Config.
func (c *KafkaConfig) Validate() error {
	return errors.Join(append(checkAddrs("seeds", "seed", c.Seeds), checkInterval(c.Interval))...)
}

// Build implements Config.
func (c *KafkaConfig) Build(deps Deps) (discovery.Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	k := &kafka{Deps: deps.withDefaults("kafka"), seeds: slices.Clone(c.Seeds), clusterID: deps.ClusterID}
	return &poller{again: newAgain(), Deps: k.Deps, interval: c.Interval, read: k.read}, nil
}

type kafka struct {
	Deps
	seeds []string
	// known are the last answer's.
	known []string
	// clusterID is the configured one, else the first answer's.
	clusterID string
}

// read asks one after the other until one answers; the one that did is asked first the next time.
func (k *kafka) read(ctx context.Context) (discovery.Update, error) {
	asked := slices.Concat(k.seeds, k.known[:min(len(k.known), kafkaKnown)])
	var errs []error
	for i, addr := range asked {
		if slices.Contains(asked[:i], addr) {
			continue
		}
		resp, err := k.ask(ctx, addr)
		if err == nil {
			var u discovery.Update
			if u, err = k.take(resp); err == nil {
				if i < len(k.seeds) {
					k.seeds = append([]string{addr}, slices.DeleteFunc(k.seeds, func(s string) bool { return s == addr })...)
				}
				return u, nil
			}
		}
		errs = append(errs, fmt.Errorf("%s: %w", addr, err))
		if ctx.Err() != nil {
			// Next time those are asked first that were not reached.
			n := min(i+1, len(k.seeds))
			k.seeds = slices.Concat(k.seeds[n:], k.seeds[:n])
			break
		}
	}
	return discovery.Update{}, errors.Join(errs...)
}

// take turns an answer into instances. Another cluster's is refused: a seed's address may have gone to another broker.
func (k *kafka) take(resp *kmsg.MetadataResponse) (u discovery.Update, err error) {
	id := ""
	if resp.ClusterID != nil {
		id = *resp.ClusterID
	}
	if k.clusterID != "" && id != k.clusterID {
		return u, fmt.Errorf("it is of cluster %.40q, the pool's is %q", id, k.clusterID)
	}
	for _, b := range resp.Brokers {
		in := discovery.Instance{ID: strconv.Itoa(int(b.NodeID)), Host: b.Host, Port: int(b.Port), NodeID: b.NodeID, Weight: 1, Source: k.Deps.Name}
		if b.Rack != nil {
			in.Rack = *b.Rack
		}
		host, err := cleanHost(b.Host)
		if err != nil || in.Port <= 0 || in.Port > 65535 || b.NodeID < 0 {
			u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.ID, Addr: in.Addr(), Reason: "bad_address"})
			continue
		}
		in.Host = host
		u.Instances = append(u.Instances, in)
	}
	if len(u.Instances) == 0 {
		return u, errors.New("it lists no usable broker")
	}
	slices.SortFunc(u.Instances, func(a, b discovery.Instance) int { return int(a.NodeID) - int(b.NodeID) })
	unique(&u)
	k.clusterID, k.known = id, nil
	for _, in := range u.Instances {
		k.known = append(k.known, in.Addr())
	}
	return u, nil
}

// ask sends Metadata without topics on a connection of its own.
func (k *kafka) ask(ctx context.Context, addr string) (*kmsg.MetadataResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, kafkaDial, fmt.Errorf("no answer within %v", kafkaDial))
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()

	const correlation = 1
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.Topics = kafkaMetadata, []kmsg.MetadataRequestTopic{}
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("kvip-discovery")).AppendRequest(nil, q, correlation)
	said := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	if _, err := conn.Write(frame); err != nil {
		return nil, said(err)
	}
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, said(fmt.Errorf("it closes instead of answering Metadata v%d: %w", kafkaMetadata, err))
	}
	size := binary.BigEndian.Uint32(head[:4])
	if size < 4 || size > kafkaMaxAnswer || binary.BigEndian.Uint32(head[4:]) != correlation {
		return nil, errors.New("what answers is no Kafka broker, or its listener wants TLS")
	}
	body, err := io.ReadAll(io.LimitReader(conn, int64(size)-4))
	if err == nil && len(body) < int(size)-4 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, said(err)
	}
	resp := kmsg.NewPtrMetadataResponse()
	resp.Version = kafkaMetadata
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w", err)
	}
	return resp, nil
}
