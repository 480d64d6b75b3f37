// Package admin is the HTTP side of kvip for operators: liveness, readiness, metrics and state. It only reads.
package admin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// MaxConns is the most connections that the listener serves at once; more wait in the kernel's queue. It is part of the
// process's descriptor budget.
const MaxConns = 32

// Config is the admin section of kvip.yaml.
type Config struct {
	// Listen is host:port; port 0 picks a free one.
	Listen string
	// Pprof serves /debug/pprof.
	Pprof bool
}

// Source is what the server shows. Its methods are called from any goroutine and must not block.
type Source interface {
	Status() Status
	// Conditions are the rules of readiness, in the order of importance.
	Conditions() []Condition
	// Explain says for each pool which broker a client would get.
	Explain(client netip.AddrPort) []Explanation
}

// Server is the admin listener.
type Server struct {
	cfg      Config
	http     *http.Server
	listener net.Listener
}

// New makes a server that listens from Listen on.
func New(cfg Config, source Source, metrics prometheus.Gatherer, log *zap.Logger) *Server {
	h := &handler{source: source}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", h.livez)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.HandleFunc("GET /statusz.json", h.statusz)
	mux.HandleFunc("GET /explain", h.explain)
	mux.HandleFunc("GET /{$}", h.page)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second, ErrorLog: zap.NewStdLog(log),
	}))
	if cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return &Server{cfg: cfg, http: &http.Server{
		Handler:           harden(mux),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		// A CPU profile takes 30 s by default, and as long as it is asked to.
		WriteTimeout:   2 * time.Minute,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       zap.NewStdLog(log),
	}}
}

// Listen binds the address.
func (s *Server) Listen(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return err
	}
	s.listener = &limited{Listener: l, slots: make(chan struct{}, MaxConns), closed: make(chan struct{})}
	return nil
}

// Addr is the bound host:port, "" before Listen.
func (s *Server) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Serve answers until Shutdown, after which it returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown waits for requests in flight until ctx ends, then cuts them.
func (s *Server) Shutdown(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}

// harden sets what every answer carries.
func harden(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}
