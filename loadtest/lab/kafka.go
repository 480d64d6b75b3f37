package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// KafkaConfig says what [StartKafka] and [StartKafkaZK] start. The zero value is three nodes of the default version.
type KafkaConfig struct {
	// Version is one of kafkaBuilds, [DefaultKafka] when empty (1.1.1 on ZooKeeper). Versions, by node, overrides it for a
	// rolling upgrade half way; added nodes run Version.
	Version  string
	Versions []string
	// Nodes is how many nodes to start, 3 when 0: each is broker and controller, on ZooKeeper a broker.
	Nodes int
	// Racks is broker.rack by node; nodes beyond its length have none.
	Racks []string
	// AdvertisedHosts is, by node, the host that clients are told, 127.0.0.1 when empty or beyond its length. A node listens
	// on it when it is an IP address, else on 127.0.0.1, so it may be a name that does not resolve.
	AdvertisedHosts []string
	// ExtraProps are added to every node's server.properties and win over the lab's. The listeners are called CLIENT,
	// INTERNAL (the nodes and the lab itself: leave it plain) and CONTROLLER; their addresses are the lab's to set.
	ExtraProps map[string]string
	// MetadataVersion is the cluster's metadata.version, such as "3.9"; the newest of Version when empty. KRaft only.
	MetadataVersion string
	// FormatArgs are further arguments for StorageTool's format, such as --add-scram. KRaft only.
	FormatArgs []string
	// LogLevel is the root level of the nodes' logs, WARN when empty.
	LogLevel string
	// Production gives the JVM the settings of Kafka's own start script (G1, both compilers, 1 GiB of heap) and Kafka its
	// default thread counts, as benchmarks need. Otherwise a node is set to start quickly and stay small.
	Production bool
	// JVMArgs are put after those settings.
	JVMArgs []string
}

// Kafka is a running cluster. Its methods may be called from several goroutines.
type Kafka struct {
	cfg       KafkaConfig
	apps      map[string]*javaApp // by version
	dir       *runDir
	clusterID string     // KRaft
	voters    string     // controller.quorum.voters, KRaft
	zk        *zookeeper // nil on KRaft

	mu     sync.Mutex // guards what follows
	ports  ports
	nodes  []*Node
	closed bool
}

// StartKafka starts a KRaft cluster and returns once every node lists every other. It listens on loopback addresses,
// unless told to advertise another. The caller must Close it.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	return startKafka(ctx, cfg, false, nil)
}

// StartKafkaZK starts ZooKeeper and, on it, a cluster as clusters were before KRaft; otherwise it does as [StartKafka].
func StartKafkaZK(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	return startKafka(ctx, cfg, true, nil)
}

// startKafka starts a cluster. All nodes run app as it is when that is given; otherwise each runs its own version, sped
// up by a class data archive.
func startKafka(ctx context.Context, cfg KafkaConfig, onZooKeeper bool, app *javaApp) (_ *Kafka, err error) {
	if cfg, err = cfg.filled(onZooKeeper); err != nil {
		return nil, err
	}
	k := &Kafka{cfg: cfg, apps: map[string]*javaApp{}}
	for _, version := range cfg.versions() {
		if app != nil {
			k.apps[version] = app
		} else if k.apps[version], err = newJavaApp(ctx, version, onZooKeeper); err != nil {
			return nil, err
		} else if k.apps[version], err = k.apps[version].archived(ctx); err != nil {
			return nil, err
		}
	}
	if k.dir, err = newRunDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	ctx, cancel := bounded(ctx)
	defer cancel()
	if onZooKeeper {
		err = k.startZooKeeper(ctx)
	}
	if err == nil {
		err = k.startNodes(ctx)
	}
	if err == nil {
		err = k.WaitReady(ctx)
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// filled returns cfg with its defaults, or what is wrong with it.
func (cfg KafkaConfig) filled(onZooKeeper bool) (KafkaConfig, error) {
	if cfg.Version == "" {
		cfg.Version = DefaultKafka
		if onZooKeeper {
			cfg.Version = DefaultKafkaZK
		}
	}
	if cfg.Nodes == 0 {
		cfg.Nodes = 3
	}
	if cfg.LogLevel == "" {
		cfg.LogLevel = "WARN"
	}
	if cfg.Nodes < 0 {
		return cfg, fmt.Errorf("lab: KafkaConfig.Nodes is %d", cfg.Nodes)
	}
	for what, n := range map[string]int{"Racks": len(cfg.Racks), "AdvertisedHosts": len(cfg.AdvertisedHosts), "Versions": len(cfg.Versions)} {
		if n > cfg.Nodes {
			return cfg, fmt.Errorf("lab: KafkaConfig.%s is for %d nodes, but Nodes is %d", what, n, cfg.Nodes)
		}
	}
	if onZooKeeper && (cfg.MetadataVersion != "" || len(cfg.FormatArgs) > 0) {
		return cfg, errors.New("lab: KafkaConfig.MetadataVersion and FormatArgs are for KRaft, this cluster is on ZooKeeper")
	}
	for _, version := range cfg.versions() {
		if _, err := buildFor(version, onZooKeeper); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// versions are the versions that its nodes run, each once.
func (cfg KafkaConfig) versions() []string {
	all := []string{cfg.Version}
	for _, v := range cfg.Versions {
		if v != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// startNodes starts the first nodes; it does not wait until they serve.
func (k *Kafka) startNodes(ctx context.Context) error {
	specs := make([]nodeSpec, k.cfg.Nodes)
	voters := make([]string, k.cfg.Nodes)
	for i := range specs {
		s := nodeSpec{
			id: int32(i + 1), version: at(k.cfg.Versions, i, k.cfg.Version),
			rack: at(k.cfg.Racks, i, ""), host: at(k.cfg.AdvertisedHosts, i, loopback),
		}
		if k.zk == nil {
			var err error
			if s.controllerPort, err = k.ports.reserve(loopback); err != nil {
				return err
			}
			voters[i] = fmt.Sprintf("%d@%s", s.id, hostPort(loopback, s.controllerPort))
		}
		specs[i] = s
	}
	k.clusterID, k.voters = newUUID(), strings.Join(voters, ",")
	for _, s := range specs {
		if _, err := k.addNode(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// AddNode starts one more broker, which is no controller, and returns once every running node lists it.
func (k *Kafka) AddNode(ctx context.Context, rack string) (*Node, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := k.addNode(ctx, nodeSpec{version: k.cfg.Version, rack: rack, host: loopback})
	if err != nil {
		return nil, err
	}
	return n, n.waitListed(ctx)
}

func (k *Kafka) addNode(ctx context.Context, s nodeSpec) (*Node, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errClosed
	}
	if s.id == 0 {
		s.id = int32(len(k.nodes) + 1)
	}
	n, err := k.newNode(ctx, s)
	if err != nil {
		return nil, err
	}
	k.nodes = append(k.nodes, n)
	return n, nil
}

// Nodes are all nodes, in the order of their start, those included that are down.
func (k *Kafka) Nodes() []*Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.nodes)
}

// Node is the node at index i, from 0. Its id is i+1.
func (k *Kafka) Node(i int) *Node { return k.Nodes()[i] }

// Bootstrap is the address of every node, for bootstrap.servers.
func (k *Kafka) Bootstrap() []string {
	var addrs []string
	for _, n := range k.Nodes() {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// ZK is the host:port of the cluster's ZooKeeper, where brokers register in /brokers/ids; empty on KRaft.
func (k *Kafka) ZK() string {
	if k.zk == nil {
		return ""
	}
	return k.zk.addr
}

// ClusterID is the cluster's id; empty on ZooKeeper, where the first broker makes one up.
func (k *Kafka) ClusterID() string {
	if k.zk != nil {
		return ""
	}
	return k.clusterID
}

func (k *Kafka) running() []*Node {
	return slices.DeleteFunc(k.Nodes(), func(n *Node) bool { return !n.Running() })
}

var (
	errNoneRunning = errors.New("no node is running")
	errClosed      = errors.New("lab: the cluster is closed")
)

// WaitReady returns once every running node lists exactly the running nodes: after a kill that takes until the
// controller has given the broker up (broker.session.timeout.ms, 9 s; zookeeper.session.timeout.ms, 6 s).
func (k *Kafka) WaitReady(ctx context.Context) error {
	return k.poll(ctx, "wait until the cluster is ready", func() error {
		running := k.running()
		if len(running) == 0 {
			return errNoneRunning
		}
		return asEach(ctx, running, running, true)
	})
}

// asEach asks every node of ask whether it lists want, and whether it accepts clients.
func asEach(ctx context.Context, ask, want []*Node, exactly bool) error {
	for _, n := range ask {
		m, err := metadata(ctx, n.internal)
		if err != nil {
			return err
		}
		if err := lists(m, want, exactly); err != nil {
			return fmt.Errorf("%s: %w", n.Name(), err)
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.listen)
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
	return nil
}

// permanent is an error that poll does not try again after.
type permanent struct{ error }

// poll calls f until it returns nil. It gives up when ctx ends (or a default limit), or a node ends that nobody ended;
// the error then has the last reason and the ends of the logs.
func (k *Kafka) poll(ctx context.Context, what string, f func() error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for {
		last := f()
		if last == nil {
			return nil
		}
		var p permanent
		if errors.As(last, &p) {
			return fmt.Errorf("lab: %s: %w", what, p.error)
		}
		if err := k.broken(); err != nil {
			return fmt.Errorf("lab: %s: %w", what, err)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			var logs strings.Builder
			if k.zk != nil {
				logs.WriteString(k.zk.LogTail())
			}
			for _, n := range k.running() {
				logs.WriteString(n.LogTail())
			}
			return fmt.Errorf("lab: %s: %w: %w%s", what, err, last, logs.String())
		}
	}
}

// broken says why waiting is in vain: the cluster is closed or a node ended by itself.
func (k *Kafka) broken() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return errClosed
	}
	for _, n := range k.nodes {
		if err := n.ended(); err != nil {
			return err
		}
	}
	return nil
}

// Close kills whatever of the cluster is up and removes its files. Closing again does nothing.
func (k *Kafka) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	errs := make([]error, len(k.nodes), len(k.nodes)+2)
	var wg sync.WaitGroup
	for i, n := range k.nodes {
		wg.Go(func() { errs[i] = n.Kill() })
	}
	wg.Wait()
	if k.zk != nil {
		errs = append(errs, k.zk.Kill())
	}
	k.ports.release()
	return errors.Join(append(errs, k.dir.remove())...)
}

// bounded gives a context without a deadline one that no wait of the lab needs on a machine that works.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	const limit = 2 * time.Minute
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("gave up after %v", limit))
}

func at(list []string, i int, otherwise string) string {
	if i < len(list) && list[i] != "" {
		return list[i]
	}
	return otherwise
}

func (k *Kafka) path(elem ...string) string {
	return filepath.Join(append([]string{k.dir.path}, elem...)...)
}
