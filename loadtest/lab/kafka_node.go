package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const loopback = "127.0.0.1"

// Node is one node of a [Kafka] cluster. Killed or stopped, it keeps its data and its addresses for Restart.
type Node struct {
	*Process
	ID   int32
	Rack string

	k        *Kafka
	addr     string // CLIENT, as advertised
	listen   string // CLIENT, as it listens
	internal string // INTERNAL
}

// Addr is the host:port that the cluster tells clients for this node.
func (n *Node) Addr() string { return n.addr }

// Service is what to register the node as in Consul under a service's name: its id is name-ID.
func (n *Node) Service(name string) Service {
	host, port, _ := net.SplitHostPort(n.addr)
	p, _ := strconv.Atoi(port) // addr was made from both
	s := Service{Name: name, ID: fmt.Sprintf("%s-%d", name, n.ID), Address: host, Port: p}
	if n.Rack != "" {
		s.Meta = map[string]string{"rack": n.Rack}
	}
	return s
}

// Restart kills the node if it is up, starts it again on its data and returns once every running node lists it.
func (n *Node) Restart(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := n.Kill(); err != nil {
		return err
	}
	if n.k.zk != nil {
		// A broker that finds its registration of the session before ends itself (KAFKA-6584).
		if err := n.k.poll(ctx, "wait until ZooKeeper has given up "+n.Name(), func() error { return n.k.zk.forgot(ctx, n.ID) }); err != nil {
			return err
		}
	}
	if err := n.k.start(n); err != nil {
		return err
	}
	return n.waitListed(ctx)
}

// Upgrade ends the node as operators do, starts it on its data in another version, one of those that [KafkaConfig] names,
// and returns once every running node lists it.
func (n *Node) Upgrade(ctx context.Context, version string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	app := n.k.apps[version]
	if app == nil {
		return fmt.Errorf("lab: upgrade %s: KafkaConfig does not name version %q", n.Name(), version)
	}
	if err := n.Stop(ctx); err != nil {
		return err
	}
	cfg, err := n.k.javaProcess(n.Name(), app, "kafka.Kafka", n.k.path(n.Name(), "server.properties"))
	if err != nil {
		return err
	}
	n.become(cfg)
	if err := n.k.start(n); err != nil {
		return err
	}
	return n.waitListed(ctx)
}

// start starts a node again, unless the cluster is closed.
func (k *Kafka) start(n *Node) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return errClosed
	}
	return n.start()
}

func (n *Node) waitListed(ctx context.Context) error {
	return n.k.poll(ctx, "wait until "+n.Name()+" is listed", func() error {
		if !n.Running() {
			return errors.New("it is down")
		}
		return asEach(ctx, n.k.running(), []*Node{n}, false)
	})
}

type nodeSpec struct {
	id             int32
	version        string
	rack, host     string
	controllerPort int // 0: broker only
}

// newNode writes a node's files and starts it.
func (k *Kafka) newNode(ctx context.Context, s nodeSpec) (*Node, error) {
	name := fmt.Sprintf("kafka-%d", s.id)
	dir := k.path(name)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil { // an earlier try may have failed half way
		return nil, fmt.Errorf("lab: %w", err)
	}
	listen := loopback
	if net.ParseIP(s.host) != nil {
		listen = s.host
	}
	client, err := k.ports.reserve(listen)
	if err != nil {
		return nil, err
	}
	internal, err := k.ports.reserve(loopback)
	if err != nil {
		return nil, err
	}
	n := &Node{
		ID: s.id, Rack: s.rack, k: k,
		addr: hostPort(s.host, client), listen: hostPort(listen, client), internal: hostPort(loopback, internal),
	}
	listeners := []string{"CLIENT://" + n.listen, "INTERNAL://" + n.internal}
	props := k.commonProps()
	props["log.dirs"] = filepath.Join(dir, "data")
	props["advertised.listeners"] = "CLIENT://" + n.addr + ",INTERNAL://" + n.internal
	if s.rack != "" {
		props["broker.rack"] = s.rack
	}
	if k.zk != nil {
		props["broker.id"] = strconv.Itoa(int(s.id))
	} else {
		props["node.id"] = strconv.Itoa(int(s.id))
		props["process.roles"] = "broker"
		if s.controllerPort != 0 {
			props["process.roles"] = "broker,controller"
			listeners = append(listeners, "CONTROLLER://"+hostPort(loopback, s.controllerPort))
		}
	}
	props["listeners"] = strings.Join(listeners, ",")
	maps.Copy(props, k.cfg.ExtraProps)
	file := filepath.Join(dir, "server.properties")
	if err := writeProperties(file, props); err != nil {
		return nil, err
	}
	app := k.apps[s.version]
	if k.zk == nil {
		if err := k.format(ctx, app, s, props["log.dirs"]); err != nil {
			return nil, err
		}
	}
	n.Process, err = k.startJava(name, app, "kafka.Kafka", file)
	return n, err
}

// commonProps are the properties that all nodes have alike.
func (k *Kafka) commonProps() map[string]string {
	copies := strconv.Itoa(min(3, k.cfg.Nodes))
	inSync := strconv.Itoa(min(2, k.cfg.Nodes))
	props := map[string]string{
		"listener.security.protocol.map":           "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":               "INTERNAL",
		"auto.create.topics.enable":                "true",
		"default.replication.factor":               copies,
		"offsets.topic.replication.factor":         copies,
		"offsets.topic.num.partitions":             "3",
		"transaction.state.log.replication.factor": copies,
		"transaction.state.log.min.isr":            inSync,
		"transaction.state.log.num.partitions":     "3",
		"group.initial.rebalance.delay.ms":         "0",
	}
	if k.zk != nil {
		props["zookeeper.connect"] = k.zk.addr
	} else {
		props["controller.quorum.voters"] = k.voters
		props["controller.listener.names"] = "CONTROLLER"
		props["share.coordinator.state.topic.replication.factor"] = copies
		props["share.coordinator.state.topic.min.isr"] = inSync
		props["share.coordinator.state.topic.num.partitions"] = "3"
		// The default second lets the first votes split often enough to make some starts take 5 to 12 s instead of 3.
		props["controller.quorum.election.timeout.ms"] = "400"
		props["controller.quorum.election.backoff.max.ms"] = "400"
	}
	if !k.cfg.Production {
		props["num.network.threads"] = "2"
		props["num.io.threads"] = "4"
		props["log.cleaner.dedupe.buffer.size"] = "10485760" // 128 MiB by default, a third of the heap
	}
	return props
}

// format gives a node its storage: a copy of the formatted one under ids of its own.
func (k *Kafka) format(ctx context.Context, app *javaApp, s nodeSpec, data string) error {
	args := k.cfg.FormatArgs
	if k.cfg.MetadataVersion != "" {
		args = append([]string{"--release-version", k.cfg.MetadataVersion}, args...)
	}
	template, err := app.formatted(ctx, args)
	if err != nil {
		return err
	}
	meta := "meta.properties"
	b, err := os.ReadFile(filepath.Join(template, "data", meta))
	if err != nil {
		return fmt.Errorf("lab: format node %d: %w", s.id, err)
	}
	lines := strings.Split(string(bytes.TrimSpace(b)), "\n")
	for i, l := range lines {
		switch key, _, _ := strings.Cut(l, "="); key {
		case "node.id":
			lines[i] = fmt.Sprintf("node.id=%d", s.id)
		case "cluster.id":
			lines[i] = "cluster.id=" + k.clusterID
		case "directory.id":
			lines[i] = "directory.id=" + newUUID()
		}
	}
	if s.controllerPort == 0 {
		err = os.Mkdir(data, 0o755) // what else is in the template is for controllers
	} else {
		err = os.CopyFS(data, os.DirFS(filepath.Join(template, "data")))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(data, meta), []byte(strings.Join(lines, "\n")+"\n"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("lab: format node %d: %w", s.id, err)
	}
	return nil
}

// startJava starts a class of app in the directory called name, where its log is, too.
func (k *Kafka) startJava(name string, app *javaApp, class, propertiesFile string) (*Process, error) {
	cfg, err := k.javaProcess(name, app, class, propertiesFile)
	if err != nil {
		return nil, err
	}
	return StartProcess(cfg)
}

func (k *Kafka) javaProcess(name string, app *javaApp, class, propertiesFile string) (ProcessConfig, error) {
	dir := k.path(name)
	logConfig := filepath.Join(dir, app.build.logConfig)
	if err := os.WriteFile(logConfig, []byte(fmt.Sprintf(logConfigs[app.build.logConfig], k.cfg.LogLevel)), 0o644); err != nil {
		return ProcessConfig{}, fmt.Errorf("lab: %w", err)
	}
	jvm := fastJVM
	if k.cfg.Production {
		jvm = productionJVM
	}
	jvm = append(slices.Clone(jvm), "-Djava.io.tmpdir="+dir, "-Dlog4j.configuration=file:"+logConfig, "-Dlog4j2.configurationFile="+logConfig)
	jvm = append(jvm, k.cfg.JVMArgs...)
	return ProcessConfig{
		Name: name, Path: app.java, Args: app.command(jvm, class, propertiesFile),
		Dir: dir, LogPath: filepath.Join(dir, "log"),
	}, nil
}

var logConfigs = map[string]string{
	"log4j2.properties": `rootLogger.level = %s
rootLogger.appenderRef.console.ref = CONSOLE
appender.console.type = Console
appender.console.name = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%%d] %%p %%m (%%c)%%n
`,
	"log4j.properties": `log4j.rootLogger = %s, CONSOLE
log4j.appender.CONSOLE = org.apache.log4j.ConsoleAppender
log4j.appender.CONSOLE.layout = org.apache.log4j.PatternLayout
log4j.appender.CONSOLE.layout.ConversionPattern = [%%d] %%p %%m (%%c)%%n
`,
}

func writeProperties(file string, props map[string]string) error {
	var b strings.Builder
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	for _, key := range slices.Sorted(maps.Keys(props)) {
		fmt.Fprintf(&b, "%s=%s\n", key, escape.Replace(props[key]))
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

// newUUID is a random id as Kafka writes them (org.apache.kafka.common.Uuid): base64url, and never a dash first, which
// tools would take for an option.
func newUUID() string {
	for {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		if s := base64.RawURLEncoding.EncodeToString(b[:]); s[0] != '-' {
			return s
		}
	}
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
