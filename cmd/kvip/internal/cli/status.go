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
	Admin   string        `help:"Where the running kvip's admin listener is." default:"http://127.0.0.1:9644" placeholder:"URL" env:"KVIP_ADMIN"`
	JSON    bool          `name:"json" help:"Print the state as JSON."`
	Timeout time.Duration `help:"How long to wait for the answer." default:"5s"`
}

// Run prints the state; the exit code is the verdict.
func (c *statusCommand) Run(s streams) error {
	base, err := adminURL(c.Admin)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	body, err := fetch(base+"/statusz.json", c.Timeout)
	if err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("no kvip answers at %s: %w (is it running? --admin names another address)", base, err)}
	}
	var st admin.Status
	if err := json.Unmarshal(body, &st); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("what answers at %s is no kvip: %w", base, err)}
	}
	if st.PID == 0 {
		return &exitError{exitUnreachable, fmt.Errorf("what answers at %s is no kvip: its answer has no pid", base)}
	}
	if c.JSON {
		fmt.Fprintf(s.out, "%s\n", bytes.TrimSpace(body))
	} else {
		fmt.Fprint(s.out, st.Text())
	}
	if !st.Healthy {
		return &exitError{exitFailed, errShown}
	}
	return nil
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
