//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/clients"
	"github.com/kvip/kvip/loadtest/lab"
)

// full says that the long forms run: every client, at length (make matrix).
var full = os.Getenv("KVIP_FULL") != ""

func chosen(pick func(clients.Client) bool) []clients.Client {
	return slices.DeleteFunc(slices.Clone(clients.All), func(c clients.Client) bool { return !pick(c) || c.Extended && !full })
}

func install(t *testing.T, cs []clients.Client) {
	t.Helper()
	if err := clients.InstallAll(within(t, 20*time.Minute), cs...); err != nil {
		t.Fatal(err)
	}
}

// once has each client find or create a topic, produce 20 records and consume them, through the VIP alone.
func once(t *testing.T, vip string, cs []clients.Client) {
	install(t, cs)
	for _, c := range cs {
		t.Run(c.Name, func(t *testing.T) {
			res, err := c.Run(within(t, 2*time.Minute), clients.Options{Bootstrap: vip, Topic: "once-" + c.Name, Count: 20})
			if err != nil {
				t.Fatal(err)
			}
			if !res.OK || res.Produced != 20 || res.Consumed != 20 {
				t.Errorf("%s: %+v\n%s", c.Library, res.Reason, res.Output)
			}
			t.Logf("%s: produced %d, consumed %d in %v", c.Library, res.Produced, res.Consumed, res.Took.Round(time.Millisecond))
		})
	}
}

func TestEveryClientDoesItsWholeJobThroughTheVIPAlone(t *testing.T) {
	k, consul := sharedLab(t)
	_ = k
	g := start(t, consul, settings{})
	once(t, g.addr, chosen(func(c clients.Client) bool { return c.Kafka4 }))
}

func TestLegacyClientsOnKafkaBeforeKRaft(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	k, err := lab.StartKafkaZK(ctx, lab.KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	_, consul := sharedLab(t)
	for _, n := range k.Nodes() {
		if err := consul.Register(ctx, n.Service("kafka-legacy")); err != nil {
			t.Fatal(err)
		}
	}
	g := start(t, consul, settings{discovery: "{type: consul, service: kafka-legacy}"})
	want, err := tableAt(ctx, k.Node(0).Addr(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tableAt(ctx, g.addr, 1); err != nil || !got.within(want) || len(got) == 0 {
		t.Errorf("ApiVersions says %v (%v), and the brokers of 1.1.1 serve %v", got, err, want)
	}
	once(t, g.addr, chosen(func(c clients.Client) bool { return c.Legacy }))
}

// Each batch of clients runs against a cluster of its own, directly and through the VIP at the same time, while one broker
// is killed -9 and a fourth is started and registered half way.
func TestLosingOneBrokerAndGainingAnotherIsNoWorseThanDirect(t *testing.T) {
	cs := chosen(func(c clients.Client) bool { return c.Kafka4 })
	install(t, cs)
	for batch := range slices.Chunk(cs, 4) {
		t.Run(batch[0].Name+" and others", func(t *testing.T) {
			worse := lose(t, batch)
			// Whether a client trips over a dead coordinator is a matter of milliseconds, directly too: kafka-python 3.0 does
			// now and then. What is the VIP's doing happens again.
			for range 2 {
				if len(worse) > 0 {
					worse = lose(t, worse)
				}
			}
			for _, c := range worse {
				t.Errorf("%s fails through the VIP where it does not directly, three times in a row", c.Name)
			}
		})
	}
}

// lose returns the clients for which the VIP was worse than direct.
func lose(t *testing.T, cs []clients.Client) (worse []clients.Client) {
	ctx := within(t, 6*time.Minute)
	k, err := lab.StartKafka(ctx, lab.KafkaConfig{Racks: []string{"a", "b", "c"}})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	_, consul := sharedLab(t)
	name := fmt.Sprintf("kafka-lose-%d", k.Node(0).Pid())
	for _, n := range k.Nodes() {
		if err := consul.Register(ctx, n.Service(name)); err != nil {
			t.Fatal(err)
		}
	}
	g := start(t, consul, settings{discovery: "{type: consul, service: " + name + "}"})
	type run struct {
		res clients.Result
		err error
	}
	runs := map[string]*run{}
	var wg sync.WaitGroup
	for _, c := range cs {
		for via, addr := range map[string]string{"direct": k.Node(0).Addr(), "vip": g.addr} {
			topic := fmt.Sprintf("lose-%s-%s", via, c.Name)
			if err := k.CreateTopic(ctx, topic, 3, 3); err != nil {
				t.Fatal(err)
			}
			r := &run{}
			runs[via+" "+c.Name] = r
			// Both lose a leader and their group's coordinator.
			group := coordinatedBy(t, k.Node(1), topic)
			wg.Go(func() {
				r.res, r.err = c.Run(ctx, clients.Options{Bootstrap: addr, Topic: topic, Group: group, Mode: clients.Steady, Seconds: 24})
			})
		}
	}
	time.Sleep(12 * time.Second)
	if err := k.Node(1).Kill(); err != nil {
		t.Fatal(err)
	}
	fourth, err := k.AddNode(ctx, "d")
	if err == nil {
		err = consul.Register(ctx, fourth.Service(name))
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the fourth broker serves in the pool", func() bool {
		for _, m := range g.status(t).Pools[0].Members {
			if m.Broker == fourth.Addr() && m.State == "serving" {
				return true
			}
		}
		return false
	})
	wg.Wait()
	for _, c := range cs {
		direct, vip := runs["direct "+c.Name], runs["vip "+c.Name]
		t.Logf("%-20s direct: produced %d, errors %d %s; vip: produced %d, errors %d %s", c.Name, direct.res.Produced, direct.res.Errors,
			direct.res.Reason, vip.res.Produced, vip.res.Errors, vip.res.Reason)
		if vip.err != nil || !vip.res.OK && direct.res.OK || direct.res.OK && vip.res.Errors > direct.res.Errors {
			t.Logf("%s is worse off through the VIP: %v %s\n%s", c.Name, vip.err, vip.res.Reason, vip.res.Output)
			worse = append(worse, c)
		}
	}
	fresh, err := cs[0].Run(context.WithoutCancel(ctx), clients.Options{Bootstrap: g.addr, Topic: "after-" + cs[0].Name, Count: 20})
	if err != nil || !fresh.OK {
		t.Errorf("a fresh %s after the loss: %v %s\n%s", cs[0].Name, err, fresh.Reason, fresh.Output)
	}
	return worse
}

// coordinatedBy returns a group whose coordinator is that node.
func coordinatedBy(t *testing.T, n *lab.Node, prefix string) string {
	t.Helper()
	var group string
	i := 0
	eventually(t, 30*time.Second, "a group that the node coordinates", func() bool {
		group, i = fmt.Sprintf("%s-%d", prefix, i), i+1
		q := kmsg.NewPtrFindCoordinatorRequest()
		q.Version, q.CoordinatorKey = 3, group
		resp, err := lab.Exchange(within(t, 5*time.Second), n.Addr(), q)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.FindCoordinatorResponse).NodeID == n.ID
	})
	return group
}
