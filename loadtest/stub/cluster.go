// Package stub is a Kafka cluster that exists on the wire only: as many brokers, topics and partitions as a test asks for,
// which a machine could not run for real. Its answers are a broker's, byte for byte (the test with tag e2e compares them
// with those of a Kafka 4.3.1), for the requests that bootstrapping clients and gateways send.
package stub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Config says what the cluster is like.
type Config struct {
	// Brokers is how many there are, at least 3. The first Listening of them (0: all) can be reached, on ports of Host; the
	// others are advertised at names that do not resolve.
	Brokers, Listening int
	// Host is the loopback address to listen on; empty: 127.0.0.1.
	Host string
	// Topics times Partitions, three replicas each, with names of 35 characters.
	Topics, Partitions int
	// Lag is how much later than the one before it each broker learns of a change.
	Lag time.Duration
	// Joined is how many brokers are in the cluster's list at first (0: all), and have the replicas; List changes the list.
	Joined int
	// Racks go to the brokers in turn; none: no broker is in one.
	Racks []string
	// Capacity is how many of clients' requests a broker serves in a second, to the brokers in turn; the others wait, none
	// is turned away. None, or 0: no limit. What gateways and health checks ask (ApiVersions, Metadata for all topics or
	// for none) is served at once.
	Capacity []float64
}

// ClusterID is the cluster's.
const ClusterID = "stub-cluster-0123456789"

const replicas = 3

// Cluster is a running stub. Its methods may be called from several goroutines.
type Cluster struct {
	cfg     Config
	brokers []kmsg.MetadataResponseBroker // all, joined or not
	mu      sync.Mutex                    // one change at a time
	now     *view                         // what the newest broker knows
	nodes   []*node
	rng     *rand.Rand

	// Asked counts Metadata requests for all topics, for none, and for named ones.
	Asked struct{ All, None, Named atomic.Uint64 }
}

// Start listens and serves until Close.
func Start(cfg Config) (*Cluster, error) {
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	if cfg.Listening == 0 {
		cfg.Listening = cfg.Brokers
	}
	if cfg.Joined == 0 {
		cfg.Joined = cfg.Brokers
	}
	if cfg.Brokers < replicas || cfg.Listening < 1 || cfg.Listening > cfg.Brokers || cfg.Joined < replicas || cfg.Joined > cfg.Brokers ||
		cfg.Topics < 0 || cfg.Topics > 0 && cfg.Partitions < 1 {
		return nil, fmt.Errorf("stub: %+v: at least %d brokers, of which 1 to all listen, %d to all have joined, and a partition in each topic",
			cfg, replicas, replicas)
	}
	c := &Cluster{cfg: cfg, rng: rand.New(rand.NewPCG(1, 2))}
	meta := &kmsg.MetadataResponse{ClusterID: kmsg.StringPtr(ClusterID), ControllerID: 1}
	for i := range cfg.Brokers {
		b := kmsg.MetadataResponseBroker{NodeID: int32(i + 1), Host: fmt.Sprintf("broker-%05d.kafka.example.internal", i+1), Port: 9092}
		if i < cfg.Listening {
			n, err := c.listen(cfg.Host)
			if err != nil {
				_ = c.Close()
				return nil, err
			}
			b.Host, b.Port = cfg.Host, n.port
			if len(cfg.Capacity) > 0 {
				n.queue.rate = cfg.Capacity[i%len(cfg.Capacity)]
			}
		}
		if len(cfg.Racks) > 0 {
			b.Rack = &cfg.Racks[i%len(cfg.Racks)]
		}
		c.brokers = append(c.brokers, b)
	}
	meta.Brokers = c.brokers[:cfg.Joined:cfg.Joined]
	for i := range cfg.Topics {
		meta.Topics = append(meta.Topics, c.topic(i))
	}
	c.now = newView(meta)
	for _, n := range c.nodes {
		n.view.Store(c.now)
		n.serve()
	}
	return c, nil
}

// Of serves what a broker said in a Metadata answer of version 13, on one port.
func Of(meta *kmsg.MetadataResponse) (*Cluster, error) {
	c := &Cluster{rng: rand.New(rand.NewPCG(1, 2)), brokers: meta.Brokers}
	n, err := c.listen("127.0.0.1")
	if err != nil {
		return nil, err
	}
	c.now = newView(meta)
	n.view.Store(c.now)
	n.serve()
	return c, nil
}

// TopicName is the name of topic i, of 35 characters.
func TopicName(i int) string { return fmt.Sprintf("a-topic-with-a-name-usual-%09d", i) }

func (c *Cluster) topic(i int) kmsg.MetadataResponseTopic {
	name := TopicName(i)
	t := kmsg.NewMetadataResponseTopic()
	t.Topic, t.TopicID = &name, [16]byte{0xab, 12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
	for p := range c.cfg.Partitions {
		first := (i + p) % c.cfg.Joined
		var rs []int32
		for r := range replicas {
			rs = append(rs, int32((first+r)%c.cfg.Joined)+1)
		}
		tp := kmsg.NewMetadataResponseTopicPartition()
		tp.Partition, tp.Leader, tp.LeaderEpoch, tp.Replicas, tp.ISR = int32(p), rs[0], 5, rs, rs
		t.Partitions = append(t.Partitions, tp)
	}
	return t
}

// Addrs are the addresses of the brokers that listen.
func (c *Cluster) Addrs() []string {
	var as []string
	for _, n := range c.nodes {
		as = append(as, n.addr)
	}
	return as
}

// Bump gives a share of all partitions, spread over topics at random, a new leader epoch, as controlled shutdowns do. It
// returns how many.
func (c *Cluster) Bump(share float64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.cfg.Topics * c.cfg.Partitions
	n := max(1, int(share*float64(all)))
	changed := map[int][]int{}
	for range n {
		at := c.rng.IntN(all)
		changed[at/c.cfg.Partitions] = append(changed[at/c.cfg.Partitions], at%c.cfg.Partitions)
	}
	c.change(func(topic int, ps []kmsg.MetadataResponseTopicPartition) {
		for _, p := range changed[topic] {
			ps[p].LeaderEpoch++
		}
	}, func(topic int) bool { return changed[topic] != nil }, nil)
	return n
}

// Elect gives every partition another leader out of its replicas.
func (c *Cluster) Elect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change(func(_ int, ps []kmsg.MetadataResponseTopicPartition) {
		for i := range ps {
			c.lead(&ps[i], -1)
		}
	}, nil, nil)
}

// Lose has broker i (from 0) die: its connections are reset, others lead what it led, and the list is without it. Metadata
// v0, which says such partitions differently, is refused as long as a replica's broker is not listed.
func (c *Cluster) Lose(i int) {
	c.Kill(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list(func(id int32) bool { return id != int32(i+1) && c.now.lists(id) })
}

// Kill has brokers (from 0) die at once: their connections are reset, nobody listens. The cluster does not know yet.
func (c *Cluster) Kill(brokers ...int) {
	for _, i := range brokers {
		c.nodes[i].close()
	}
}

// Restart has killed brokers listen again, where they did.
func (c *Cluster) Restart(brokers ...int) error {
	for _, i := range brokers {
		if err := c.nodes[i].restart(); err != nil {
			return err
		}
	}
	return nil
}

// Freeze has brokers stop to answer, whatever they are asked, until Thaw; the kernel goes on to accept for them.
func (c *Cluster) Freeze(brokers ...int) {
	for _, i := range brokers {
		c.nodes[i].freeze()
	}
}

// Thaw ends Freeze: what was asked meanwhile is answered.
func (c *Cluster) Thaw(brokers ...int) {
	for _, i := range brokers {
		c.nodes[i].thaw()
	}
}

// List has the cluster's list be these brokers (from 0): partitions are led by those of their replicas that are in it.
func (c *Cluster) List(brokers ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list(func(id int32) bool { return slices.Contains(brokers, int(id-1)) })
}

// list is List, under mu.
func (c *Cluster) list(in func(id int32) bool) {
	out := func(id int32) bool { return !in(id) }
	c.change(func(_ int, ps []kmsg.MetadataResponseTopicPartition) {
		for i := range ps {
			p := &ps[i]
			p.OfflineReplicas = slices.DeleteFunc(slices.Clone(p.Replicas), in)
			p.ISR = slices.DeleteFunc(slices.Clone(p.Replicas), out)
			if len(p.OfflineReplicas) == 0 {
				p.OfflineReplicas = nil
			}
			switch {
			case len(p.ISR) == 0:
				p.Leader, p.ErrorCode = -1, leaderNotAvailable
			case !slices.Contains(p.ISR, p.Leader):
				p.ErrorCode = 0
				c.lead(p, p.Leader)
			}
		}
	}, nil, func([]kmsg.MetadataResponseBroker) []kmsg.MetadataResponseBroker {
		return slices.DeleteFunc(slices.Clone(c.brokers), func(b kmsg.MetadataResponseBroker) bool { return out(b.NodeID) })
	})
}

// Served is how many of the requests that Capacity bounds each listening broker has served.
func (c *Cluster) Served() []uint64 {
	var all []uint64
	for _, n := range c.nodes {
		all = append(all, n.queue.served.Load())
	}
	return all
}

// lead gives p the next leader in sync that is not dead.
func (c *Cluster) lead(p *kmsg.MetadataResponseTopicPartition, dead int32) {
	at := slices.Index(p.Replicas, p.Leader)
	for i := 1; i <= len(p.Replicas); i++ {
		if r := p.Replicas[(at+i)%len(p.Replicas)]; r != dead && slices.Contains(p.ISR, r) {
			p.Leader, p.LeaderEpoch = r, p.LeaderEpoch+1
			return
		}
	}
}

// change makes the next view of a copy of the last and tells the brokers. Topics for which touched is false are shared.
func (c *Cluster) change(partitions func(topic int, ps []kmsg.MetadataResponseTopicPartition), touched func(topic int) bool,
	brokers func([]kmsg.MetadataResponseBroker) []kmsg.MetadataResponseBroker) {
	meta := *c.now.meta
	meta.Topics = slices.Clone(meta.Topics)
	for i := range meta.Topics {
		if touched == nil || touched(i) {
			meta.Topics[i].Partitions = slices.Clone(meta.Topics[i].Partitions)
			partitions(i, meta.Topics[i].Partitions)
		}
	}
	if brokers != nil {
		meta.Brokers = brokers(slices.Clone(meta.Brokers))
		if !slices.ContainsFunc(meta.Brokers, func(b kmsg.MetadataResponseBroker) bool { return b.NodeID == meta.ControllerID }) {
			meta.ControllerID = meta.Brokers[0].NodeID
		}
	}
	c.now = newView(&meta)
	for i, n := range c.nodes {
		if v := c.now; c.cfg.Lag > 0 && i > 0 {
			time.AfterFunc(time.Duration(i)*c.cfg.Lag, func() { n.learn(v) })
		} else {
			n.learn(v)
		}
	}
}

// Epoch returns the leader epoch of a partition as the newest broker knows it.
func (c *Cluster) Epoch(topic, partition int) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.meta.Topics[topic].Partitions[partition].LeaderEpoch
}

// Close ends all brokers.
func (c *Cluster) Close() error {
	for _, n := range c.nodes {
		n.close()
	}
	for _, n := range c.nodes {
		n.wg.Wait()
	}
	return nil
}
