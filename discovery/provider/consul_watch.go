package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"

	"github.com/kvip/kvip/discovery"
)

// How Consul is read. The index rules and the wait are those of https://developer.hashicorp.com/consul/api-docs/features/blocking.
const (
	consulWait      = 5 * time.Minute  // a blocking read's wait
	consulWaitStale = 10 * time.Second // after a stale answer, which may become true without a change of the index
	consulGrace     = 10 * time.Second // for the answer itself, on top of the wait and the jitter that a server adds
	consulMaxLag    = 5 * time.Second  // a server out of touch with the leader for longer gives stale answers
	consulMaxRate   = 1                // reads a second, whatever comes back and how fast
	consulBurst     = 2
	consulMaxBytes  = 32 << 20
	consulMaxToken  = 4 << 10
)

// ConsulSettings is the top-level `consul:` section.
type ConsulSettings struct {
	// Address is host:port, or a URL with http or https; "" is 127.0.0.1:8500. The environment's CONSUL_HTTP_TOKEN and
	// CONSUL_HTTP_TOKEN_FILE count as in any Consul tool when TokenFile is empty.
	Address string `yaml:"address"`
	// TokenFile holds the ACL token; it is read anew for every query, so that a rotated token is used at once.
	TokenFile string `yaml:"token_file"`
	// Datacenter is the one to ask for; "" is the agent's own.
	Datacenter string `yaml:"datacenter"`
}

// Validate returns every fault, joined; each is a *FieldError.
func (s ConsulSettings) Validate() error {
	var errs []error
	if err := checkConsulAddress(s.Address); s.Address != "" && err != nil {
		errs = append(errs, &FieldError{Field: "address", Problem: err.Error(), Fix: "write host:port or http(s)://host:port, e.g. 127.0.0.1:8500"})
	}
	if _, err := s.token(); err != nil {
		errs = append(errs, &FieldError{Field: "token_file", Problem: err.Error(), Fix: "name a readable file that holds the token, or leave it out"})
	}
	return errors.Join(errs...)
}

func checkConsulAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || !strings.Contains(address, "://") {
		_, _, err := splitAddr(address)
		return err
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is neither http nor https", address)
	}
	_, err = cleanHost(u.Hostname())
	return err
}

// token reads the token file; "" without one.
func (s ConsulSettings) token() (string, error) {
	if s.TokenFile == "" {
		return "", nil
	}
	info, err := os.Stat(s.TokenFile)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > consulMaxToken {
		return "", fmt.Errorf("%s is no file of at most %d bytes", s.TokenFile, consulMaxToken)
	}
	b, err := os.ReadFile(s.TokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("%s is empty", s.TokenFile)
	}
	return token, nil
}

// newClient makes Consul's client over rt; each request carries its own token.
func (s ConsulSettings) newClient(rt http.RoundTripper) (*api.Client, error) {
	client, err := api.NewClient(&api.Config{
		Address: s.Address, Scheme: "http", Datacenter: s.Datacenter, HttpClient: newHTTPClient(rt, consulMaxBytes),
	})
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return client, nil
}

// consulWatch reads one thing by blocking queries, for good.
type consulWatch struct {
	again
	Deps
	// what is read, and the rights that it takes, for errors.
	what, rights string
	own          *http.Transport
	client       *api.Client
	limiter      *rate.Limiter
	// query reads once, with q's wait; it says what came, and how it came.
	query func(q *api.QueryOptions) (discovery.Update, *api.QueryMeta, error)
}

// newConsulWatch makes a watch without its query.
func newConsulWatch(deps Deps, what, rights string) (*consulWatch, error) {
	if err := deps.Consul.Validate(); err != nil {
		return nil, err
	}
	w := &consulWatch{again: newAgain(), Deps: deps, what: what, rights: rights, limiter: rate.NewLimiter(consulMaxRate, consulBurst)}
	if w.Transport == nil {
		w.own = newTransport()
		w.Transport = w.own
	}
	var err error
	w.client, err = deps.Consul.newClient(w.Transport)
	return w, err
}

// errRefresh ends a blocking query whose registry is to be read anew.
var errRefresh = errors.New("asked to read again")

// Name implements discovery.Provider.
func (c *consulWatch) Name() string { return c.Deps.Name }

// Run implements discovery.Provider.
func (c *consulWatch) Run(ctx context.Context, publish func(discovery.Update)) error {
	if c.own != nil {
		defer c.own.CloseIdleConnections()
	}
	retry := &backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, Multiplier: 1.5, RandomizationFactor: 0.25, MaxInterval: 1600 * time.Millisecond,
	}
	var index uint64
	wait := consulWait
	for {
		if err := c.limiter.Wait(ctx); err != nil {
			<-ctx.Done() // it gives up ahead of a deadline
			return ctx.Err()
		}
		update, next, err := c.read(ctx, index, wait)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errRefresh):
			index = 0
			continue
		case err != nil:
			publish(discovery.Update{Provider: c.Name(), Err: err, At: c.Now()})
			// A new server may count from the start: waiting for the old index would make the watch deaf.
			index = 0
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(retry.NextBackOff()):
			}
			continue
		}
		retry.Reset()
		publish(update)
		wait = consulWait
		if update.Stale {
			wait = consulWaitStale
		}
		switch {
		case next < index:
			index = 0
		default:
			index = max(next, 1)
		}
	}
}

// read asks once, and returns within the wait, plus what a server may add to it, plus the grace.
func (c *consulWatch) read(ctx context.Context, index uint64, wait time.Duration) (discovery.Update, uint64, error) {
	token, err := c.Consul.token()
	if err != nil {
		return discovery.Update{}, 0, fmt.Errorf("consul.token_file: %w", err)
	}
	limit := consulGrace
	if index > 0 {
		limit += wait + wait/16
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no answer within %v", limit)) })
	defer timer.Stop()
	if index > 0 { // a read without an index is fresh by itself
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			select {
			case <-c.again:
				cancel(errRefresh)
			case <-stop:
			}
		}()
		// Behind a new connection may be an agent that was restarted between two reads, and counts from the start: waiting
		// for the old index would make the watch deaf without any error.
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
			if !c.Reused {
				cancel(errRefresh)
			}
		}})
	}
	q := &api.QueryOptions{WaitIndex: index, WaitTime: wait, Token: token}
	u, meta, err := c.query(q.WithContext(ctx))
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return discovery.Update{}, 0, explainConsul(err, c.Consul, c.what, c.rights)
	}
	return u, meta.LastIndex, nil
}

// explainConsul words an error for an operator; what the peer sent is cut and made printable.
func explainConsul(err error, s ConsulSettings, what, rights string) error {
	if errors.Is(err, errRefresh) {
		return err
	}
	var status api.StatusError
	if !errors.As(err, &status) {
		return fmt.Errorf("consul: %w", err)
	}
	said := strconv.QuoteToGraphic(status.Body[:min(len(status.Body), 200)])
	if status.Code == http.StatusForbidden {
		source := "no token_file is set"
		if s.TokenFile != "" {
			source = "token_file " + s.TokenFile
		}
		return fmt.Errorf("consul refuses the use of %s (403, %s; %s): the token needs %s", what, said, source, rights)
	}
	return fmt.Errorf("consul answers %d: %s", status.Code, said)
}
