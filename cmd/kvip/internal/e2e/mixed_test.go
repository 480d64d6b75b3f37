//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/clients"
	"github.com/kvip/kvip/loadtest/lab"
)

// table is what ApiVersions says: the lowest and highest version of each key.
type table map[int16][2]int16

func tableOf(ctx context.Context, addr string) (table, error) { return tableAt(ctx, addr, 3) }

func tableAt(ctx context.Context, addr string, version int16) (table, error) {
	q := kmsg.NewPtrApiVersionsRequest()
	q.Version, q.ClientSoftwareName, q.ClientSoftwareVersion = version, "kvip", "1.0"
	resp, err := lab.Exchange(ctx, addr, q)
	if err != nil {
		return nil, err
	}
	t := table{}
	for _, k := range resp.(*kmsg.ApiVersionsResponse).ApiKeys {
		t[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
	}
	return t, nil
}

// overlap is what all of some tables have in common.
func overlap(tables ...table) table {
	common := table{}
	for key, r := range tables[0] {
		all := true
		for _, t := range tables[1:] {
			o, ok := t[key]
			r = [2]int16{max(r[0], o[0]), min(r[1], o[1])}
			all = all && ok
		}
		if all && r[0] <= r[1] {
			common[key] = r
		}
	}
	return common
}

// within says that whatever t promises, o does.
func (t table) within(o table) bool { return cmp.Equal(overlap(t, o), t) }

// listedNodes are the ids of the brokers that Metadata names.
func listedNodes(ctx context.Context, addr string) ([]int32, error) {
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.Topics = 12, []kmsg.MetadataRequestTopic{}
	resp, err := lab.Exchange(ctx, addr, q)
	if err != nil {
		return nil, err
	}
	var ids []int32
	for _, b := range resp.(*kmsg.MetadataResponse).Brokers {
		ids = append(ids, b.NodeID)
	}
	slices.Sort(ids)
	return ids, nil
}

// watchMixed looks at the VIP all the time, as clients that come and go do: while it hands out a broker that is told to
// watch for, what ApiVersions says must be true of it.
type watchMixed struct {
	mu    sync.Mutex
	old   map[int32]table
	looks int
}

func (w *watchMixed) run(ctx context.Context, t *testing.T, vip string) {
	lists := func() []int32 {
		ids, err := listedNodes(ctx, vip)
		if err != nil && ctx.Err() == nil {
			t.Errorf("Metadata of the VIP: %v", err)
		}
		return ids
	}
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		before := lists()
		said, err := tableOf(ctx, vip)
		after := lists()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.Errorf("ApiVersions of the VIP: %v", err)
			continue
		}
		w.mu.Lock()
		w.looks++
		for id, has := range w.old {
			if slices.Contains(before, id) && slices.Contains(after, id) && !said.within(has) {
				t.Errorf("node %d is handed out while ApiVersions says what it does not serve: Produce %v, it has %v", id, said[0], has[0])
			}
		}
		w.mu.Unlock()
	}
}

func (w *watchMixed) set(id int32, has table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if has == nil {
		delete(w.old, id)
		return
	}
	w.old[id] = has
}

// Field case BL-02, on real brokers: two of 3.9.1 beside one of 4.3.1 are upgraded one by one, one is rolled back and upgraded
// again, then a 3.9.1 broker joins and leaves. What the VIP says about versions is true of every broker that it hands out, at each moment; clients that
// produce and consume all the while notice nothing that they would not notice directly.
func TestARollingUpgradeNeverPromisesWhatABrokerLacks(t *testing.T) {
	if !full {
		t.Skip("it takes more than a minute: make matrix runs it; TestTheOverlapFollowsARollingUpgrade of backends is its short form")
	}
	names := []string{"kafkajs", "kafka-python-3.0", "kafka-python-2.0.2"}
	cs := chosen(func(c clients.Client) bool { return slices.Contains(names, c.Name) })
	install(t, cs)
	ctx := within(t, 6*time.Minute)
	k, err := lab.StartKafka(ctx, lab.KafkaConfig{Version: "3.9.1", Versions: []string{"", "", "4.3.1"}, MetadataVersion: "3.9"})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	_, consul := sharedLab(t)
	name := fmt.Sprintf("kafka-mixed-%d", k.Node(0).Pid())
	for _, n := range k.Nodes() {
		if err := consul.Register(ctx, n.Service(name)); err != nil {
			t.Fatal(err)
		}
	}
	g := start(t, consul, settings{
		discovery: "{type: consul, service: " + name + "}", pool: "    dial_allow: [127.0.0.0/8]",
	})
	of := func(addr string) table {
		t.Helper()
		got, err := tableOf(ctx, addr)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	old, young := of(k.Node(0).Addr()), of(k.Node(2).Addr())
	both := overlap(old, young)
	if cmp.Equal(both, young) || cmp.Equal(both, old) {
		t.Fatalf("3.9.1 and 4.3.1 do not differ both ways: nothing is shown")
	}
	says := func(what string, want table) {
		t.Helper()
		begun := time.Now()
		eventually(t, 5*time.Second, what, func() bool { return cmp.Equal(of(g.addr), want) })
		t.Logf("after %v: %s (Produce %v, %d keys)", time.Since(begun).Round(time.Millisecond), what, want[0], len(want))
	}
	for range 30 {
		if diff := cmp.Diff(both, of(g.addr)); diff != "" {
			t.Fatalf("the overlap of 3.9.1 and 4.3.1 (-want +got):\n%s", diff)
		}
	}

	watch := &watchMixed{old: map[int32]table{1: old, 2: old, 3: young}}
	watching, endWatch := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { watch.run(watching, t, g.addr) })
	report := steadily(ctx, t, k, g.addr, cs, &all)
	time.Sleep(4 * time.Second)

	upgrade := func(n *lab.Node) {
		t.Helper()
		watch.set(n.ID, nil) // from here on it may be either
		if err := n.Upgrade(ctx, "4.3.1"); err != nil {
			t.Fatal(err)
		}
		watch.set(n.ID, young)
		inSync(ctx, t, n)
	}
	upgrade(k.Node(0))
	if got := of(g.addr); !cmp.Equal(got, both) {
		t.Errorf("with one old broker left, Produce %v instead of %v", got[0], both[0])
	}
	lists := func(what string, id int32, want bool) {
		t.Helper()
		eventually(t, 5*time.Second, what, func() bool {
			ids, err := listedNodes(ctx, g.addr)
			return err == nil && slices.Contains(ids, id) == want
		})
	}
	stop := func(n *lab.Node) {
		t.Helper()
		if err := n.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		lists(n.Name()+" has gone from the list", n.ID, false)
	}
	watch.set(2, old)
	stop(k.Node(1))
	if got := of(g.addr); !cmp.Equal(got, both) {
		t.Errorf("an old broker that is only down counts: Produce %v instead of %v", got[0], both[0])
	}
	upgrade(k.Node(1))
	says("widened after the last upgrade", young)

	watch.set(1, nil)
	stop(k.Node(0)) // to be rolled back
	watch.set(1, old)
	if err := k.Node(0).Upgrade(ctx, "3.9.1"); err != nil {
		t.Fatal(err)
	}
	lists("the broker that was rolled back is handed out", 1, true)
	if got := of(g.addr); !cmp.Equal(got, both) {
		t.Errorf("a broker that was rolled back is handed out, and Produce is %v instead of %v", got[0], both[0])
	}
	inSync(ctx, t, k.Node(0))
	upgrade(k.Node(0))
	says("widened after it was upgraded again", young)

	fourth, err := k.AddNode(ctx, "") // of 3.9.1
	if err != nil {
		t.Fatal(err)
	}
	watch.set(fourth.ID, old)
	if err := consul.Register(ctx, fourth.Service(name)); err != nil {
		t.Fatal(err)
	}
	lists("the old broker is handed out", fourth.ID, true)
	if got := of(g.addr); !cmp.Equal(got, both) {
		t.Errorf("an old broker is handed out, and Produce is %v instead of %v", got[0], both[0])
	}
	time.Sleep(2 * time.Second)
	out := g.pool(t, "remove", fourth.Addr())
	t.Log(strings.TrimSpace(out))
	if err := fourth.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	says("widened after the old broker has left", young)
	endWatch()
	all.Wait()
	t.Logf("%d looks at the VIP", watch.looks)
	report()
}

// steadily has clients produce and consume through the VIP, and directly as well; report judges them.
func steadily(ctx context.Context, t *testing.T, k *lab.Kafka, vip string, cs []clients.Client, all *sync.WaitGroup) (report func()) {
	t.Helper()
	type run struct {
		res clients.Result
		err error
	}
	addrs := map[string]string{"vip": vip, "direct": k.Node(2).Addr()}
	runs := map[string]*run{}
	for _, c := range cs {
		for via, addr := range addrs {
			topic := fmt.Sprintf("mixed-%s-%s", via, c.Name)
			if err := k.CreateTopic(ctx, topic, 6, 3); err != nil {
				t.Fatal(err)
			}
			r := &run{}
			runs[via+" "+c.Name] = r
			all.Go(func() {
				r.res, r.err = c.Run(ctx, clients.Options{Bootstrap: addr, Topic: topic, Mode: clients.Steady, Seconds: 30})
			})
		}
	}
	return func() {
		for _, c := range cs {
			direct, vip := runs["direct "+c.Name], runs["vip "+c.Name]
			t.Logf("%-20s direct: produced %d, errors %d %s", c.Name, direct.res.Produced, direct.res.Errors, direct.res.Reason)
			t.Logf("%-20s vip: produced %d, consumed %d, errors %d %s", c.Name, vip.res.Produced, vip.res.Consumed, vip.res.Errors, vip.res.Reason)
			if vip.err != nil || !vip.res.OK || vip.res.Errors > direct.res.Errors {
				t.Errorf("%s: %v %s\n%s", c.Name, vip.err, vip.res.Reason, vip.res.Output)
			}
		}
	}
}

// inSync waits until a node is in sync with every partition that it has a replica of.
func inSync(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	eventually(t, 30*time.Second, n.Name()+" is in sync", func() bool {
		q := kmsg.NewPtrMetadataRequest()
		q.Version = 9
		resp, err := lab.Exchange(ctx, n.Addr(), q)
		if err != nil {
			return false
		}
		for _, topic := range resp.(*kmsg.MetadataResponse).Topics {
			for _, p := range topic.Partitions {
				if slices.Contains(p.Replicas, n.ID) && !slices.Contains(p.ISR, n.ID) {
					return false
				}
			}
		}
		return true
	})
}
