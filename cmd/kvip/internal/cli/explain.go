package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/kvip/kvip/cmd/kvip/internal/admin"
)

type explainCommand struct {
	adminFlags `embed:""`
	Client     string `arg:"" help:"The client's address, with its port if the policy is source-hash." placeholder:"IP[:PORT]"`
	JSON       bool   `name:"json" help:"Print the explanation as JSON."`
}

// Run asks a running kvip which broker a client would get now.
func (c *explainCommand) Run(s streams) error {
	if _, err := admin.ParseClient(c.Client); err != nil {
		return &exitError{exitUsage, err}
	}
	base, body, err := c.get("/explain?client=" + url.QueryEscape(c.Client))
	if err != nil {
		return err
	}
	var all []admin.Explanation
	if err := json.Unmarshal(body, &all); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("what answers at %s is no kvip: %w", base, err)}
	}
	if c.JSON {
		fmt.Fprintf(s.out, "%s\n", bytes.TrimSpace(body))
		return nil
	}
	fmt.Fprint(s.out, admin.ExplainText(all, time.Now()))
	return nil
}
