package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// control lets other programs, such as a load test's events, act on a running cluster over HTTP.
type control struct {
	kafka   *Kafka
	consul  *Consul // nil without
	service string
	server  *http.Server
	addr    string
	served  chan struct{}
}

func startControl(listen string, k *Kafka, consul *Consul, service string) (*control, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("lab: control: %w", err)
	}
	c := &control{kafka: k, consul: consul, service: service, addr: l.Addr().String(), served: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", c.list)
	mux.HandleFunc("POST /nodes", c.add)
	mux.HandleFunc("POST /nodes/{id}/{action}", c.act)
	mux.HandleFunc("POST /topics/{name}", c.create)
	mux.HandleFunc("POST /elect", c.all((*Kafka).ElectPreferredLeaders))
	mux.HandleFunc("POST /reassign", c.all((*Kafka).ReassignAll))
	ctx, cancel := context.WithCancel(context.Background())
	c.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	c.server.RegisterOnShutdown(cancel)
	go func() {
		defer close(c.served)
		defer cancel()
		_ = c.server.Serve(l) // returns ErrServerClosed on Close
	}()
	return c, nil
}

// Addr is the host:port on which it listens.
func (c *control) Addr() string { return c.addr }

// Close ends what is under way.
func (c *control) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := c.server.Shutdown(ctx)
	if err != nil {
		err = c.server.Close()
	}
	<-c.served
	return err
}

// nodeState is a broker as GET / shows it.
type nodeState struct {
	ID      int32  `json:"id"`
	Addr    string `json:"addr"`
	Rack    string `json:"rack,omitempty"`
	PID     int    `json:"pid"`
	Running bool   `json:"running"`
	Log     string `json:"log"`
}

func stateOf(n *Node) nodeState {
	return nodeState{n.ID, n.Addr(), n.Rack, n.Pid(), n.Running(), n.LogPath()}
}

func (c *control) list(w http.ResponseWriter, _ *http.Request) {
	states := []nodeState{}
	for _, n := range c.kafka.Nodes() {
		states = append(states, stateOf(n))
	}
	respond(w, states, nil)
}

// nodeActions are what POST /nodes/ID/ACTION does.
var nodeActions = map[string]func(context.Context, *Node) error{
	"kill":    func(_ context.Context, n *Node) error { return n.Kill() },
	"stop":    func(ctx context.Context, n *Node) error { return n.Stop(ctx) },
	"pause":   func(_ context.Context, n *Node) error { return n.Pause() },
	"resume":  func(_ context.Context, n *Node) error { return n.Resume() },
	"restart": func(ctx context.Context, n *Node) error { return n.Restart(ctx) },
}

var errUnknown = errors.New("no such thing")

func (c *control) act(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.PathValue("id"))
	nodes := c.kafka.Nodes()
	if err != nil || id < 1 || id > len(nodes) {
		respond(w, nil, fmt.Errorf("%w: node %q: there are 1 to %d", errUnknown, r.PathValue("id"), len(nodes)))
		return
	}
	action := nodeActions[r.PathValue("action")]
	if action == nil {
		respond(w, nil, fmt.Errorf("%w: action %q: write kill, stop, pause, resume or restart", errUnknown, r.PathValue("action")))
		return
	}
	ctx, cancel := bounded(r.Context())
	defer cancel()
	n := nodes[id-1]
	err = action(ctx, n)
	respond(w, stateOf(n), err)
}

// add starts one more broker in the rack that the query names, and registers it in Consul if there is one.
func (c *control) add(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := bounded(r.Context())
	defer cancel()
	n, err := c.kafka.AddNode(ctx, r.URL.Query().Get("rack"))
	if err == nil && c.consul != nil {
		err = c.consul.Register(ctx, n.Service(c.service))
	}
	if err != nil {
		respond(w, nil, err)
		return
	}
	respond(w, stateOf(n), nil)
}

// create makes a topic of as many partitions and replicas as the query says, 6 and as many as there may be, up to 3.
func (c *control) create(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := bounded(r.Context())
	defer cancel()
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(r.URL.Query().Get(name)); err == nil {
			return n
		}
		return otherwise
	}
	name := r.PathValue("name")
	respond(w, name, c.kafka.CreateTopic(ctx, name, number("partitions", 6), number("replicas", min(3, len(c.kafka.running())))))
}

// all serves what concerns the whole cluster.
func (c *control) all(do func(*Kafka, context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := bounded(r.Context())
		defer cancel()
		respond(w, "done", do(c.kafka, ctx))
	}
}

// respond writes what was found as JSON, or why there is nothing.
func respond(w http.ResponseWriter, found any, err error) {
	switch {
	case errors.Is(err, errUnknown):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(found) // the client went away
	}
}
