package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

const consulVersion = "1.14.11" // from 1.15 on it does not build as a dependency

// ConsulConfig says how [StartConsul] configures the agent.
type ConsulConfig struct {
	HCL   string // added to the agent's configuration
	Token string // the ACL token that the lab's own requests carry, when HCL turns ACLs on
}

// Consul is a running Consul agent that is a server, too, and keeps everything in memory (consul agent -dev).
type Consul struct {
	*Process
	cfg   ConsulConfig
	addr  string
	dir   *runDir
	ports ports
	http  *http.Client
	close func() error
}

// StartConsul starts an agent and returns once it has elected itself and lists itself in its catalog. It runs the consul
// on PATH (1.14 or later), else a Consul 1.14.11 that is built the first time, which takes minutes. The caller must Close it.
func StartConsul(ctx context.Context, cfg ConsulConfig) (_ *Consul, err error) {
	path, err := consulProgram(ctx)
	if err != nil {
		return nil, err
	}
	c := &Consul{cfg: cfg, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	c.close = sync.OnceValue(c.stopAndRemove)
	if c.dir, err = newRunDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	args := []string{"agent", "-dev", "-node=lab", "-bind=" + loopback, "-client=" + loopback, "-log-level=warn",
		"-disable-host-node-id", "-dns-port=-1", "-grpc-port=-1", "-grpc-tls-port=-1", "-serf-wan-port=-1",
		"-hcl=disable_update_check = true"}
	for _, flag := range []string{"http", "serf-lan", "server"} {
		port, err := c.ports.reserve(loopback)
		if err != nil {
			return nil, err
		}
		args = append(args, fmt.Sprintf("-%s-port=%d", flag, port))
		if flag == "http" {
			c.addr = hostPort(loopback, port)
		}
	}
	if cfg.HCL != "" {
		args = append(args, "-hcl="+cfg.HCL)
	}
	c.Process, err = StartProcess(ProcessConfig{Name: "consul", Path: path, Args: args, Dir: c.dir.path, LogPath: filepath.Join(c.dir.path, "log")})
	if err != nil {
		return nil, err
	}
	if err = c.waitReady(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func consulProgram(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("consul"); err == nil {
		return path, nil
	}
	const goMod = "module kvip.lab/consul\n\ngo 1.20\n\nrequire github.com/hashicorp/consul v" + consulVersion + "\n"
	const tools = "//go:build tools\n\npackage consul\n\nimport _ \"github.com/hashicorp/consul\"\n"
	dir, err := Cached(ctx, "consul-"+consulVersion, func(ctx context.Context, dir string) error {
		// A module of its own: its dependencies must not enter kvip's.
		for name, text := range map[string]string{"go.mod": goMod, "tools.go": tools} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
		_, err := RunCommand(ctx, dir, []string{"GOFLAGS=-mod=mod", "GOWORK=off"},
			"go", "build", "-o", "consul", "github.com/hashicorp/consul")
		if err != nil {
			return fmt.Errorf("%w\nA consul on PATH is used instead, if there is one: https://developer.hashicorp.com/consul/install", err)
		}
		return nil
	})
	return filepath.Join(dir, "consul"), err
}

// Addr is the host:port of its HTTP API.
func (c *Consul) Addr() string { return c.addr }

// Restart kills the agent if it is up and starts it again at the same address, with nothing registered and its indexes
// low again.
func (c *Consul) Restart(ctx context.Context) error {
	if err := c.Kill(); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	return c.waitReady(ctx)
}

// Close kills the agent and removes its files. Closing again does nothing.
func (c *Consul) Close() error { return c.close() }

func (c *Consul) stopAndRemove() error {
	var err error
	if c.Process != nil {
		err = c.Kill()
	}
	c.ports.release()
	return errors.Join(err, c.dir.remove())
}

func (c *Consul) waitReady(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	ready := func() error {
		body, header, err := c.do(ctx, http.MethodGet, "/v1/catalog/node/lab", nil)
		if header.Get("X-Consul-Results-Filtered-By-ACLs") == "true" {
			return nil // there is something, which the token may not read
		}
		if err == nil && bytes.Equal(bytes.TrimSpace(body), []byte("null")) {
			err = errors.New("it is not in its own catalog")
		}
		return err
	}
	for {
		last := ready()
		if last == nil {
			return nil
		}
		if err := c.ended(); err != nil {
			return err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("lab: wait for Consul: %w: %w%s", err, last, c.LogTail())
		}
	}
}

// Service is what [Consul.Register] registers.
type Service struct {
	Name    string // such as kafka-orders
	ID      string // Name when empty; registering the same ID again replaces it
	Address string
	Port    int
	Tags    []string          `json:",omitempty"`
	Meta    map[string]string `json:",omitempty"`
	Weights *ServiceWeights   `json:",omitempty"`
}

// ServiceWeights are the weights of a service by the state of its checks.
type ServiceWeights struct{ Passing, Warning int }

// Register registers a service with the agent. Its health is what [Consul.SetHealth] says, passing at first.
func (c *Consul) Register(ctx context.Context, s Service) error {
	if s.ID == "" {
		s.ID = s.Name
	}
	type check struct{ CheckID, TTL, Status string }
	_, err := c.Do(ctx, http.MethodPut, "/v1/agent/service/register", struct {
		Service
		Check check
	}{s, check{CheckID: checkID(s.ID), TTL: "24h", Status: "passing"}})
	return err
}

func checkID(service string) string { return "lab:" + service }

// Deregister removes a service from the agent.
func (c *Consul) Deregister(ctx context.Context, id string) error {
	_, err := c.Do(ctx, http.MethodPut, "/v1/agent/service/deregister/"+url.PathEscape(id), nil)
	return err
}

// SetHealth sets the state of a registered service's check: passing, warning or critical.
func (c *Consul) SetHealth(ctx context.Context, id, status string) error {
	_, err := c.Do(ctx, http.MethodPut, "/v1/agent/check/update/"+url.PathEscape(checkID(id)), map[string]string{"Status": status})
	return err
}

// Do sends any request to the agent's HTTP API, with body as JSON when it is not nil, and returns the answer's body. An
// answer outside 200-299 is an error.
func (c *Consul) Do(ctx context.Context, method, path string, body any) ([]byte, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	out, _, err := c.do(ctx, method, path, body)
	if err != nil {
		return nil, fmt.Errorf("lab: consul: %s %s: %w", method, path, err)
	}
	return out, nil
}

func (c *Consul) do(ctx context.Context, method, path string, body any) ([]byte, http.Header, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, nil, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, in)
	if err != nil {
		return nil, nil, err
	}
	if c.cfg.Token != "" {
		req.Header.Set("X-Consul-Token", c.cfg.Token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(out))
	}
	return out, resp.Header, err
}
