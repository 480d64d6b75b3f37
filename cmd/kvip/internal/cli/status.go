package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvip/kvip/cmd/kvip/internal/admin"
)

// maxStatus is more than the state of thousands of brokers takes.
const maxStatus = 64 << 20

type statusCommand struct {
	adminFlags `embed:""`
	JSON       bool `name:"json" help:"Print the state as JSON."`
}

// Run prints the state; the exit code is the verdict.
func (c *statusCommand) Run(s streams) error {
	st, body, err := c.status()
	if err != nil {
		return err
	}
	if c.JSON {
		fmt.Fprintf(s.out, "%s\n", body)
	} else {
		fmt.Fprint(s.out, st.Text())
	}
	if !st.Healthy {
		return &exitError{exitFailed, errShown}
	}
	return nil
}

// adminFlags say where a running kvip is.
type adminFlags struct {
	Admin   string        `help:"Where the running kvip's admin listener is." default:"http://127.0.0.1:9644" placeholder:"URL" env:"KVIP_ADMIN"`
	Timeout time.Duration `help:"How long to wait for the answer." default:"5s"`
}

// get asks for a path, and says at which URL.
func (f adminFlags) get(path string) (base string, body []byte, err error) {
	if base, err = adminURL(f.Admin); err != nil {
		return "", nil, &exitError{exitUsage, err}
	}
	if body, err = fetch(base+path, f.Timeout); err != nil {
		return base, nil, &exitError{exitUnreachable, fmt.Errorf("no kvip answers at %s: %w (is it running? --admin names another address)", base, err)}
	}
	return base, body, nil
}

// status asks for the state, and returns it with the bytes that it came as.
func (f adminFlags) status() (admin.Status, []byte, error) {
	var st admin.Status
	base, body, err := f.get("/statusz.json")
	if err != nil {
		return st, nil, err
	}
	if err := json.Unmarshal(body, &st); err != nil {
		return st, nil, &exitError{exitUnreachable, fmt.Errorf("what answers at %s is no kvip: %w", base, err)}
	}
	if st.PID == 0 {
		return st, nil, &exitError{exitUnreachable, fmt.Errorf("what answers at %s is no kvip: its answer has no pid", base)}
	}
	return st, bytes.TrimSpace(body), nil
}

// adminURL completes what a person writes: host:port, or a URL with or without a path.
func adminURL(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("--admin %q is no address: write host:port or http://host:port", s)
	}
	return u.Scheme + "://" + u.Host + strings.TrimSuffix(u.Path, "/"), nil
}

func fetch(address string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		// The URL is in the message already.
		if ue := (*url.Error)(nil); errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it says %s", resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxStatus))
}
