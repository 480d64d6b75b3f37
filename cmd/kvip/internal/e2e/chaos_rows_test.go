//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/kvip/kvip/loadtest/lab"
)

// rows is the chaos table.
var rows = []row{
	{name: "pool", about: "pool 3 → 6 → 3 by `kvip pool`", nodes: 6, short: 18 * time.Second, disturb: func(c *chaos) {
		added := c.kafka.Nodes()[3:6]
		for c.room(c.length(14 * time.Second)) {
			for _, n := range added {
				begun := time.Now()
				c.g.pool(c.T, "add", n.Addr())
				c.isIn(n, begun)
			}
			c.rest(3*time.Second, time.Second)
			for _, n := range added {
				c.g.pool(c.T, "remove", n.Addr())
				c.isGone(n)
			}
			c.rest(3*time.Second, 0)
			c.times++
		}
	}},
	{name: "kill", about: "a broker killed (`kill -9`) and started again, in turn", nodes: 3, short: 18 * time.Second, disturb: func(c *chaos) {
		c.inTurn(40*time.Second, 12*time.Second, func(n *lab.Node) {
			begun := time.Now()
			c.must(n.Kill())
			c.isOut(n, begun)
			c.rest(14*time.Second, 3*time.Second) // the cluster gives it up after 9 s
			c.must(n.Restart(c.ctx))
			c.isBack(n)
			c.rest(5*time.Second, 0)
		})
	}},
	{name: "freeze", about: "a broker frozen (SIGSTOP), in turn", nodes: 3, short: 20 * time.Second, disturb: func(c *chaos) {
		c.inTurn(30*time.Second, 12*time.Second, func(n *lab.Node) {
			begun := time.Now()
			c.must(n.Pause())
			c.isOut(n, begun)
			c.rest(12*time.Second, 9*time.Second)
			c.must(n.Resume())
			c.isBack(n)
			c.rest(5*time.Second, 0)
		})
	}},
	{name: "blackhole", about: "a broker in a black hole: bytes of open and new connections disappear both ways, in turn", nodes: 3, proxied: true,
		disturb: func(c *chaos) {
			c.inTurn(20*time.Second, 10*time.Second, func(n *lab.Node) {
				p := c.proxies[n.Addr()]
				begun := time.Now()
				c.must(p.Set(lab.Faults{Up: lab.Path{Drop: true}, Down: lab.Path{Drop: true}, HalfOpen: true}))
				c.isOut(n, begun)
				c.rest(8*time.Second, time.Second)
				c.must(p.Set(lab.Faults{}))
				c.isBack(n)
				c.rest(3*time.Second, 0)
			})
		}},
	{name: "flap", about: "a broker that flaps: reset and refused for 1 s, reachable for 1.5 s, six times in a row, in turn", nodes: 3, proxied: true,
		disturb: func(c *chaos) {
			c.inTurn(40*time.Second, 10*time.Second, func(n *lab.Node) {
				p := c.proxies[n.Addr()]
				for i := range 6 {
					begun := time.Now()
					c.must(p.Set(lab.Faults{Refuse: true}))
					p.ResetAll()
					if i == 0 {
						c.isOut(n, begun)
					}
					time.Sleep(max(0, time.Until(begun.Add(time.Second))))
					c.must(p.Set(lab.Faults{}))
					time.Sleep(1500 * time.Millisecond)
				}
				c.rest(10*time.Second, time.Second)
			})
		}},
	{name: "consul-killed", about: "Consul killed, and back at the end", nodes: 4, disturb: func(c *chaos) {
		c.must(c.consul.Kill())
		c.times++
		for c.room(25 * time.Second) {
			time.Sleep(time.Second)
			c.keeps()
		}
		c.must(c.consul.Restart(c.ctx))
		c.register()
		c.newcomer()
	}},
	{name: "consul-frozen", about: "Consul frozen (SIGSTOP) for 60 s", nodes: 4, disturb: func(c *chaos) {
		for c.room(c.length(75 * time.Second)) {
			c.must(c.consul.Pause())
			c.times++
			c.watch(60*time.Second, 10*time.Second)
			c.must(c.consul.Resume())
			c.newcomer()
		}
	}},
	{name: "consul-empty", about: "Consul restarted empty, filled again after 20 s", nodes: 4, short: 14 * time.Second, disturb: func(c *chaos) {
		for c.room(c.length(35 * time.Second)) {
			c.must(c.consul.Restart(c.ctx))
			c.times++
			c.watch(20*time.Second, 4*time.Second)
			c.register()
			c.newcomer()
		}
	}},
	{name: "acl-revoked", about: "Consul's ACL token deleted for 30 s, and made again", nodes: 4,
		consul: lab.ConsulConfig{HCL: `acl { enabled = true default_policy = "deny" tokens { initial_management = "root" agent = "root" } }`, Token: "root"},
		token: func(c *chaos) string {
			for name, file := range map[string]string{"kvip": "consul-policy.hcl", "operator": "consul-policy-operator.hcl"} {
				rules, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", file))
				c.must(err)
				_, err = c.consul.Do(c.ctx, http.MethodPut, "/v1/acl/policy", map[string]string{"Name": name, "Rules": string(rules)})
				c.must(err)
			}
			c.makeToken()
			return chaosToken
		},
		disturb: func(c *chaos) {
			for c.room(c.length(45 * time.Second)) {
				_, err := c.consul.Do(c.ctx, http.MethodDelete, "/v1/acl/token/"+chaosAccessor, nil)
				c.must(err)
				c.times++
				c.watch(30*time.Second, 5*time.Second)
				c.makeToken()
				c.newcomer()
			}
		}},
	{name: "index-back", about: "Consul's index backwards: restarted with everything registered again at once", nodes: 4, disturb: func(c *chaos) {
		for c.room(c.length(25 * time.Second)) {
			for i := range 200 {
				_, err := c.consul.Do(c.ctx, http.MethodPut, fmt.Sprintf("/v1/kv/chaos/%d", i), "x")
				c.must(err)
			}
			c.newcomer() // takes the index of what the gateway watches up there, too
			before := c.index()
			c.must(c.consul.Restart(c.ctx))
			c.register()
			if after := c.index(); after >= before {
				c.Errorf("the index went from %d to %d, not back", before, after)
			}
			c.times++
			c.newcomer()
		}
	}},
}

// length is how long a disturbance takes, in the short form a third of it.
func (c *chaos) length(full time.Duration) time.Duration {
	if c.full {
		return full
	}
	return full / 3
}

// inTurn disturbs one registered node after the other, in the short form one.
func (c *chaos) inTurn(full, short time.Duration, disturb func(n *lab.Node)) {
	for i := 0; i == 0 || c.full && c.room(full); i++ {
		disturb(c.kafka.Node(i % 3))
	}
}

// watch makes sure for a while that the members stay.
func (c *chaos) watch(full, short time.Duration) {
	if !c.full {
		full = short
	}
	for end := time.Now().Add(full); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		c.keeps()
	}
}

// newcomer registers the fourth broker, which has to be in use soon, and takes it out again.
func (c *chaos) newcomer() {
	n := c.kafka.Node(3)
	begun := time.Now()
	c.g.pool(c.T, "add", n.Addr())
	c.isIn(n, begun)
	c.keeps()
	c.rest(2*time.Second, 0)
	c.g.pool(c.T, "remove", n.Addr())
	c.isGone(n)
}

// The gateway's token, by which it is known and by which it is deleted.
const chaosToken, chaosAccessor = "5c9dd2a4-0f0c-4cb4-9d3c-6a1f3c3b7a11", "8b7de0ee-2f1a-4a7c-8d63-0f8f5b8c2a22"

func (c *chaos) makeToken() {
	c.Helper()
	type named = map[string]string
	_, err := c.consul.Do(c.ctx, http.MethodPut, "/v1/acl/token", map[string]any{
		"AccessorID": chaosAccessor, "SecretID": chaosToken, "Policies": []named{{"Name": "kvip"}, {"Name": "operator"}},
	})
	c.must(err)
}

// index is how often Consul's store has changed.
func (c *chaos) index() int {
	out, err := c.consul.Do(c.ctx, http.MethodGet, "/v1/agent/self", nil)
	c.must(err)
	var self struct {
		Stats struct {
			Raft struct {
				Index string `json:"last_log_index"`
			} `json:"raft"`
		}
	}
	c.must(json.Unmarshal(out, &self))
	n := 0
	_, err = fmt.Sscan(self.Stats.Raft.Index, &n)
	c.must(err)
	return n
}
