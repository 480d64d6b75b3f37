//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvip/kvip/loadtest/lab"
)

// What every row of the chaos table promises, beside no failed bootstrap and no wrong answer.
const (
	// interval, timeout and fall are the pool's defaults: a broker that says nothing is forwarded to no longer than leaves.
	interval, timeout, fall = time.Second, 500 * time.Millisecond, 3
	leaves                  = interval + timeout*fall
	// joins is how long a new registration may take to be in use.
	joins = 3 * time.Second
	// bound is how old an answer may be by the brokers' word: max_age (1 s), three refreshes for what looks older or smaller
	// than before (1.5 s), and the time that a broker which says nothing costs one of them (0.5 s).
	bound = 3 * time.Second
	// chaosRate is bootstraps per second: chaosFull of it are more than 100,000.
	chaosRate, chaosFull = 500, 205 * time.Second
)

// chaos is one row of the table while it runs: a cluster, a registry, a gateway, and a load on the gateway.
type chaos struct {
	*testing.T
	full   bool
	ctx    context.Context // of the whole row
	kafka  *lab.Kafka
	consul *lab.Consul
	g      *gateway
	// proxies are before the registered brokers, where the row wants them: their addresses are registered instead.
	proxies map[string]*lab.FaultProxy
	end     time.Time // of the load

	times     int // of the disturbance
	out, back []time.Duration
}

// row is one kind of disturbance.
type row struct {
	name, about string
	nodes       int // of the cluster; the first three are registered
	proxied     bool
	consul      lab.ConsulConfig
	token       func(c *chaos) string // makes the gateway's token
	// short is the length of the row in the short form, 0: it is not run there.
	short time.Duration
	// disturb goes on until there is no room for another disturbance.
	disturb func(c *chaos)
}

// TestChaos runs the rows of the table: KVIP_FULL=1 all of them for chaosFull each, printing lines for docs/CHAOS.md.
func TestChaos(t *testing.T) {
	full := os.Getenv("KVIP_FULL") != ""
	if full {
		t.Logf("\n%s", chaosHead)
	}
	for _, r := range rows {
		if !full && r.short == 0 {
			continue
		}
		t.Run(r.name, func(t *testing.T) { r.run(t, full) })
	}
}

const chaosHead = "| disturbance | times | bootstraps | failed | untrue | answers' age by the brokers' word, p99 / max | bootstrap p50 / p99 / max | out of the forward set, slowest | new one in use, slowest |\n" +
	"|---|---|---|---|---|---|---|---|---|"

func (r row) run(t *testing.T, full bool) {
	length := r.short
	if full {
		length = chaosFull
	}
	c := &chaos{T: t, full: full, ctx: within(t, length+5*time.Minute), proxies: map[string]*lab.FaultProxy{}}
	c.prepare(r)
	run := loaded(t, c.g, c.kafka, length, func(end time.Time) {
		c.end = end
		r.disturb(c)
	})
	s := &run.Sides[0]
	untrue := flawless(t, run)
	if full && s.Done < 100_000 || c.times == 0 {
		t.Errorf("%d bootstraps, disturbed %d times", s.Done, c.times)
	}
	age, took := s.Stages["age"], s.Latency()
	t.Logf("\n| %s | %d | %d | %d | %d | %s / %s | %s / %s / %s | %s | %s |", r.about, c.times, s.Done, s.Failed-untrue, untrue,
		span(age.At(99)), span(age.Highest()), span(took.At(50)), span(took.At(99)), span(took.Highest()), longest(c.out), longest(c.back))
	t.Logf("closes by reason: %v", c.g.status(t).VIPs[0].Closed)
	t.Logf("%d answers named a partition with an error, %d no coordinator yet", s.PartitionErrors, s.CoordinatorErrors)
	for _, w := range slices.Concat(run.Verdict.Void, run.Environment.Warnings) {
		t.Logf("of the load itself: %s", w)
	}
}

func span(d time.Duration) string {
	if d >= 10*time.Millisecond {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

func longest(all []time.Duration) string {
	if len(all) == 0 {
		return "-"
	}
	return span(slices.Max(all))
}

// prepare starts everything, with three brokers registered.
func (c *chaos) prepare(r row) {
	var err error
	if c.consul, err = lab.StartConsul(c.ctx, r.consul); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = c.consul.Close() })
	if c.kafka, err = lab.StartKafka(c.ctx, lab.KafkaConfig{Nodes: r.nodes}); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = c.kafka.Close() })
	for _, topic := range topics[:2] {
		if err := c.kafka.CreateTopic(c.ctx, topic, 6, 3); err != nil {
			c.Fatal(err)
		}
	}
	coordinated(c.T, c.kafka)
	if r.proxied {
		for _, n := range c.kafka.Nodes()[:3] {
			p, err := lab.StartFaultProxy(n.Addr())
			if err != nil {
				c.Fatal(err)
			}
			c.Cleanup(func() { _ = p.Close() })
			c.proxies[n.Addr()] = p
		}
	}
	c.register()
	s := settings{}
	if r.token != nil {
		s.token = r.token(c)
	}
	c.g = start(c.T, c.consul, s)
	eventually(c.T, 20*time.Second, "three brokers serve", func() bool {
		return len(c.usable()) == 3
	})
}

// register registers the first three brokers with Consul's agent.
func (c *chaos) register() {
	c.Helper()
	for _, n := range c.kafka.Nodes()[:3] {
		s := n.Service(service)
		if p := c.proxies[n.Addr()]; p != nil {
			host, port, _ := net.SplitHostPort(p.Addr())
			s.Address = host
			_, _ = fmt.Sscan(port, &s.Port)
			s.Meta = map[string]string{"node_id": fmt.Sprint(n.ID)}
		}
		if err := c.consul.Register(c.ctx, s); err != nil {
			c.Fatal(err)
		}
	}
}

// room says whether so much of the load is left.
func (c *chaos) room(d time.Duration) bool { return time.Until(c.end) >= d }

// rest waits: in the short form less.
func (c *chaos) rest(full, short time.Duration) {
	if !c.full {
		full = short
	}
	time.Sleep(full)
}

// usable are the members to which forwards may go, with the number of connections that are open to each.
func (c *chaos) usable() map[string]int {
	found := map[string]int{}
	for _, m := range c.g.status(c.T).Pools[0].Members {
		if m.Forwardable {
			found[m.Broker] = m.Connections
		}
	}
	return found
}

// at is the address by which a node is a member.
func (c *chaos) at(n *lab.Node) string {
	if p := c.proxies[n.Addr()]; p != nil {
		return p.Addr()
	}
	return n.Addr()
}

// isOut waits until nothing is forwarded to a node any more, since begun.
func (c *chaos) isOut(n *lab.Node, begun time.Time) {
	c.Helper()
	c.times++
	c.waitFor(10*time.Second, c.at(n)+" has left the forward set", func() bool { _, ok := c.usable()[c.at(n)]; return !ok })
	took := time.Since(begun)
	c.out = append(c.out, took)
	c.promise(c.at(n)+" left the forward set", took, leaves+50*time.Millisecond) // between two looks
}

// promise judges a time: in the short form, which runs on whatever machine there is, twice of it will do.
func (c *chaos) promise(what string, took, most time.Duration) {
	c.Helper()
	if !c.full {
		most *= 2
	}
	if took > most {
		c.Errorf("%s after %s, promised within %s", what, took, most)
	}
}

// isBack waits until a node is forwarded to again.
func (c *chaos) isBack(n *lab.Node) {
	c.Helper()
	c.waitFor(90*time.Second, c.at(n)+" is back in the forward set", func() bool { _, ok := c.usable()[c.at(n)]; return ok })
}

// isIn waits until a node that was registered at begun is used: a forward has gone to it.
func (c *chaos) isIn(n *lab.Node, begun time.Time) {
	c.Helper()
	c.waitFor(20*time.Second, c.at(n)+" is in use", func() bool { return c.usable()[c.at(n)] > 0 })
	took := time.Since(begun)
	c.back = append(c.back, took)
	c.promise(c.at(n)+" was in use", took, joins)
}

// isGone waits until a node is no member any more.
func (c *chaos) isGone(n *lab.Node) {
	c.Helper()
	c.waitFor(joins, c.at(n)+" is no member", func() bool { return c.g.members(c.T)[c.at(n)] == "" })
}

// keeps makes sure that the three members stay members, whatever their state.
func (c *chaos) keeps() {
	c.Helper()
	if m := c.g.members(c.T); len(m) < 3 {
		c.Errorf("members are %v, while the registry says nothing", m)
	}
}

func (c *chaos) waitFor(d time.Duration, what string, ok func() bool) {
	c.Helper()
	eventually(c.T, d, what, ok)
}

func (c *chaos) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}
