package provider

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-zookeeper/zk"

	"github.com/kvip/kvip/discovery"
)

const (
	defaultSession = 6 * time.Second // as brokers' zookeeper.session.timeout.ms was until 2.5
	minSession     = time.Second
	maxSession     = time.Minute
	zkGather       = 50 * time.Millisecond // a burst of events is one read
	zkAgain        = time.Minute           // without any event
	zkRetry        = 2 * time.Second
	zkMaxBytes     = 4 << 20 // one answer, as ZooKeeper's jute.maxbuffer
)

// ZookeeperConfig is `discovery: {type: zookeeper, servers: [...]}`: the brokers that have registered in /brokers/ids,
// where those before Kafka 4.0 keep an ephemeral node each.
type ZookeeperConfig struct {
	Type string `yaml:"type"`
	// Servers are host:port of the ensemble.
	Servers []string `yaml:"servers"`
	// Chroot is what follows the servers in the brokers' zookeeper.connect, like /kafka.
	Chroot string `yaml:"chroot"`
	// Listener is the name of the listener that clients are to be told; empty: the first whose protocol is PLAINTEXT.
	Listener string `yaml:"listener"`
	// Session is the session timeout that is asked for.
	Session time.Duration `yaml:"session"`
}

// Validate implements Config.
func (c *ZookeeperConfig) Validate() error {
	errs := checkAddrs("servers", "server", c.Servers)
	if c.Chroot != "" && (c.Chroot != path.Clean(c.Chroot) || c.Chroot[0] != '/' || c.Chroot == "/") {
		errs = append(errs, &FieldError{Field: "chroot", Problem: fmt.Sprintf("%q is no path of a node", c.Chroot), Fix: "write it as in the brokers' zookeeper.connect, like /kafka, or leave it out"})
	}
	if c.Session < minSession || c.Session > maxSession {
		errs = append(errs, &FieldError{Field: "session", Problem: fmt.Sprintf("%v is out of range", c.Session), Fix: fmt.Sprintf("write %v to %v", minSession, maxSession)})
	}
	return errors.Join(errs...)
}

// Build implements Config.
func (c *ZookeeperConfig) Build(deps Deps) (discovery.Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &zookeeper{again: newAgain(), Deps: deps.withDefaults("zookeeper"), cfg: *c, ids: c.Chroot + "/brokers/ids"}, nil
}

// zookeeper watches the children of one node, and each of them, for listeners of a running broker may change.
type zookeeper struct {
	again
	Deps
	cfg ZookeeperConfig
	ids string
}

// Name implements discovery.Provider.
func (z *zookeeper) Name() string { return z.Deps.Name }

// Run implements discovery.Provider.
func (z *zookeeper) Run(ctx context.Context, publish func(discovery.Update)) error {
	w := &zkWatch{ids: z.ids, dirty: make(chan struct{}, 1)}
	lines := newZKLines(ctx, z.cfg.Servers)
	conn, _, err := zk.Connect(z.cfg.Servers, z.cfg.Session, zk.WithHostProvider(lines), zk.WithDialer(lines.dial),
		zk.WithEventCallback(w.event), zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithMaxBufferSize(zkMaxBytes))
	if err != nil {
		return fmt.Errorf("zookeeper: %w", err) // the lists are checked: it cannot be
	}
	w.conn = conn
	defer closeZK(conn, lines)
	retry := &backoff.ExponentialBackOff{InitialInterval: 250 * time.Millisecond, Multiplier: 2, RandomizationFactor: 0.25, MaxInterval: zkRetry}
	for all := true; ; {
		u, err := z.read(ctx, w, all)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := zkAgain
		if err != nil {
			u, wait = discovery.Update{Err: fmt.Errorf("zookeeper: %w", err)}, retry.NextBackOff()
		} else {
			retry.Reset()
		}
		u.Provider, u.At = z.Name(), z.Now()
		publish(u)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
			all = true
		case <-z.again:
			all = true
		case <-w.dirty:
			all = false
			select { // the rest of the burst
			case <-ctx.Done():
			case <-time.After(zkGather):
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// closeZK ends the session. The library waits up to a second for an answer; a server that does not answer at once has its
// connection cut, and the library's last goroutine ends behind our back.
func closeZK(conn *zk.Conn, lines *zkLines) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn.Close()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Millisecond):
		lines.cut()
	}
}

// read reads in a goroutine of its own, for the library's calls know no context. One that is late is waited for further
// the next time.
func (z *zookeeper) read(ctx context.Context, w *zkWatch, all bool) (discovery.Update, error) {
	if w.pending == nil {
		pending := make(chan zkResult, 1)
		w.pending = pending
		go func() { pending <- w.read(all) }()
	}
	limit := 2 * z.cfg.Session
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-w.pending:
		if w.pending = nil; r.err != nil {
			return discovery.Update{}, r.err
		}
		return z.take(r.data), nil
	case <-ctx.Done():
		return discovery.Update{}, ctx.Err()
	case <-timer.C:
		return discovery.Update{}, fmt.Errorf("no answer within %v", limit)
	}
}

// take turns what the nodes hold into instances.
func (z *zookeeper) take(data map[string]string) (u discovery.Update) {
	for _, id := range slices.Sorted(maps.Keys(data)) {
		in, reason := z.instance(id, data[id])
		if reason != "" {
			u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.ID, Addr: in.Addr(), Reason: reason})
			continue
		}
		u.Instances = append(u.Instances, in)
	}
	unique(&u)
	return u
}

// registration is a broker's node, versions 1 to 5 (kafka.zk.BrokerIdZNode). Host and port are those of the PLAINTEXT
// listener, null and -1 when there is none; endpoints came with version 2, rack with 3, names of listeners with 4.
type registration struct {
	Host      string            `json:"host"`
	Port      int               `json:"port"`
	Rack      string            `json:"rack"`
	Endpoints []string          `json:"endpoints"`
	Protocols map[string]string `json:"listener_security_protocol_map"`
}

// instance reads one node. reason says why it is not to be taken, "" when it is.
func (z *zookeeper) instance(id, data string) (in discovery.Instance, reason string) {
	in = discovery.Instance{ID: id, NodeID: -1, Weight: 1, Source: z.Name()}
	n, err := strconv.ParseInt(id, 10, 32)
	if err != nil || n < 0 {
		return in, "bad_id"
	}
	in.NodeID = int32(n)
	var r registration
	if err := json.Unmarshal([]byte(data), &r); err != nil {
		return in, "bad_json"
	}
	in.Rack = r.Rack
	host, port, ok := r.endpoint(z.cfg.Listener)
	if !ok {
		return in, "no_listener"
	}
	in.Host, in.Port = host, port
	if host, err = cleanHost(host); err != nil {
		return in, "bad_address"
	}
	if in.Host = host; port <= 0 || port > 65535 {
		return in, "no_port"
	}
	return in, ""
}

// endpoint finds a listener by its name, or the first that is in plaintext.
func (r registration) endpoint(listener string) (host string, port int, ok bool) {
	for _, e := range r.Endpoints {
		name, _, _ := strings.Cut(e, "://")
		if strings.EqualFold(name, listener) || listener == "" && strings.EqualFold(cmp.Or(r.Protocols[name], name), "PLAINTEXT") {
			// A listener's name may have what a URL's scheme may not.
			u, err := url.Parse("kafka://" + strings.TrimPrefix(e[len(name):], "://"))
			if err != nil {
				return "", 0, false
			}
			port, _ := strconv.Atoi(u.Port())
			return u.Hostname(), port, true
		}
	}
	if len(r.Endpoints) == 0 && (listener == "" || strings.EqualFold(listener, "PLAINTEXT")) && r.Host != "" {
		return r.Host, r.Port, true
	}
	return "", 0, false
}

// zkWatch reads nodes and keeps a watch on each. The library adds a watch at every reading that asks for one, so a node
// with a watch is read without.
type zkWatch struct {
	conn  *zk.Conn
	ids   string
	dirty chan struct{} // capacity 1
	// pending is the read that is under way, nil when none is: there is one at a time.
	pending chan zkResult
	data    map[string]string // by id, as last read

	mu      sync.Mutex
	watched map[string]bool
}

type zkResult struct {
	data map[string]string // by id
	err  error
}

// event is called by the library; it must not block.
func (w *zkWatch) event(e zk.Event) {
	switch {
	case e.Type != zk.EventSession:
		w.unwatch(e.Path) // a watch tells once
	case e.State == zk.StateExpired:
		w.mu.Lock()
		w.watched = nil // all watches are gone with the session
		w.mu.Unlock()
	case e.State != zk.StateDisconnected: // which the next read tells of, when it is not over by then
		return
	}
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// want says whether a node has to be read with a new watch, and marks it as watched.
func (w *zkWatch) want(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched == nil {
		w.watched = map[string]bool{}
	}
	if w.watched[node] {
		return false
	}
	w.watched[node] = true
	return true
}

// unwatch forgets a watch that has told, or was not set.
func (w *zkWatch) unwatch(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watched, node)
}

// read returns the data of all brokers' nodes; those that are watched and unchanged are read only if all is set.
func (w *zkWatch) read(all bool) zkResult {
	var ids []string
	var err error
	if w.want(w.ids) {
		ids, _, _, err = w.conn.ChildrenW(w.ids)
	} else {
		ids, _, err = w.conn.Children(w.ids)
	}
	if err != nil {
		w.unwatch(w.ids)
		if errors.Is(err, zk.ErrNoNode) {
			err = fmt.Errorf("there is no node %s: is the chroot right, and has a broker ever started?", w.ids)
		}
		return zkResult{err: err}
	}
	fresh := make(map[string]string, len(ids))
	for _, id := range ids {
		node := w.ids + "/" + id
		var b []byte
		switch known, have := w.data[id]; {
		case w.want(node):
			if b, _, _, err = w.conn.GetW(node); err != nil {
				w.unwatch(node)
			}
		case have && !all:
			b = []byte(known)
		default:
			b, _, err = w.conn.Get(node)
		}
		if errors.Is(err, zk.ErrNoNode) {
			continue // it went meanwhile
		}
		if err != nil {
			return zkResult{err: err}
		}
		fresh[id] = string(b)
	}
	w.data = fresh
	return zkResult{data: fresh}
}

// zkLines chooses servers, and holds the one connection that there is. The library's own choice asks DNS once, at the start,
// and without a limit in time.
type zkLines struct {
	ctx context.Context

	mu      sync.Mutex
	servers []string
	next    int
	tried   int
	conn    net.Conn
}

func newZKLines(ctx context.Context, servers []string) *zkLines {
	l := &zkLines{ctx: ctx, servers: slices.Clone(servers)}
	rand.Shuffle(len(l.servers), func(i, j int) { l.servers[i], l.servers[j] = l.servers[j], l.servers[i] })
	return l
}

// Init, Len, Next and Connected implement zk.HostProvider.
func (l *zkLines) Init([]string) error { return nil }

// Len implements zk.HostProvider.
func (l *zkLines) Len() int { return len(l.servers) }

// Next implements zk.HostProvider: the servers in turn. retryStart says that all were tried, for a pause.
func (l *zkLines) Next() (server string, retryStart bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server = l.servers[l.next]
	l.next = (l.next + 1) % len(l.servers)
	retryStart = l.tried > 0 && l.tried%len(l.servers) == 0
	l.tried++
	return server, retryStart
}

// Connected implements zk.HostProvider.
func (l *zkLines) Connected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried = 0
}

func (l *zkLines) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	return conn, nil
}

// cut ends the connection.
func (l *zkLines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

// silent drops the library's log: what matters comes back as errors.
type silent struct{}

// Printf implements zk.Logger.
func (silent) Printf(string, ...any) {}
