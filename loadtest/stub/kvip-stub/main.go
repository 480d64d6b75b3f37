// Kvip-stub runs a stub cluster as a process of its own, so that what it costs is not counted with anybody else. It is
// told what to do over HTTP: GET /addrs, GET /asked, POST /bump?share=0.001, POST /elect, POST /lose?broker=0.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kvip/kvip/loadtest/stub"
)

type options struct {
	Brokers    int           `help:"Brokers in the cluster." default:"3"`
	Listening  int           `help:"How many of them can be reached; 0: all." default:"0"`
	Topics     int           `help:"Topics." default:"100"`
	Partitions int           `help:"Partitions of each, three replicas each." default:"6"`
	Lag        time.Duration `help:"How much later than the one before it each broker learns of a change." default:"0s"`
	Control    string        `help:"Address for commands." required:""`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("kvip-stub"), kong.Description("A Kafka cluster that exists on the wire only."))
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "kvip-stub:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := stub.Start(stub.Config{Brokers: o.Brokers, Listening: o.Listening, Topics: o.Topics, Partitions: o.Partitions, Lag: o.Lag})
	if err != nil {
		return err
	}
	srv := &http.Server{Addr: o.Control, Handler: commands(c), ReadHeaderTimeout: time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(err, c.Close())
	}
	return c.Close()
}

func commands(c *stub.Cluster) http.Handler {
	mux := http.NewServeMux()
	say := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("GET /addrs", func(w http.ResponseWriter, _ *http.Request) { say(w, c.Addrs()) })
	mux.HandleFunc("GET /asked", func(w http.ResponseWriter, _ *http.Request) {
		say(w, map[string]uint64{"all": c.Asked.All.Load(), "none": c.Asked.None.Load(), "named": c.Asked.Named.Load()})
	})
	mux.HandleFunc("POST /bump", func(w http.ResponseWriter, r *http.Request) {
		share, err := strconv.ParseFloat(r.URL.Query().Get("share"), 64)
		if err != nil || share <= 0 || share > 1 {
			http.Error(w, "share is a number above 0, at most 1", http.StatusBadRequest)
			return
		}
		say(w, c.Bump(share))
	})
	mux.HandleFunc("POST /elect", func(w http.ResponseWriter, _ *http.Request) { c.Elect() })
	mux.HandleFunc("POST /lose", func(w http.ResponseWriter, r *http.Request) {
		i, err := strconv.Atoi(r.URL.Query().Get("broker"))
		if err != nil || i < 0 || i >= len(c.Addrs()) {
			http.Error(w, "broker is the place of one that listens, from 0", http.StatusBadRequest)
			return
		}
		c.Lose(i)
	})
	return mux
}
