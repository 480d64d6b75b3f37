package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// records is how many the client produces and consumes.
const records = 10

// proofTimeout bounds the whole proof.
const proofTimeout = 30 * time.Second

// prove bootstraps a client from address alone, produces, consumes, and prints what it did and who served it.
func prove(ctx context.Context, out io.Writer, address string) error {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	seen := &served{}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address),
		kgo.ClientID("kvip-demo"),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.WithHooks(seen),
	)
	if err != nil {
		return err
	}
	defer client.Close()

	meta, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	fmt.Fprintf(out, "  bootstrap  cluster %s:", value(meta.ClusterID))
	for _, b := range meta.Brokers {
		fmt.Fprintf(out, " broker %d at %s:%d", b.NodeID, b.Host, b.Port)
		if b.NodeID != meta.Brokers[len(meta.Brokers)-1].NodeID {
			fmt.Fprint(out, ",")
		}
	}
	fmt.Fprintln(out)

	for i := range records {
		r := &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "order %d", i+1)}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
		fmt.Fprintf(out, "  produced   %-9s to partition %d at offset %d\n", r.Value, r.Partition, r.Offset)
	}
	consumed := 0
	for consumed < records {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("consume: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			consumed++
			fmt.Fprintf(out, "  consumed   %-9s from partition %d at offset %d\n", r.Value, r.Partition, r.Offset)
		})
	}
	fmt.Fprintf(out, "\n%d produced, %d consumed. Which address the client asked what:\n\n", records, consumed)
	seen.print(out, address)
	return nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// served counts the client's requests by the address that they went to (kgo.HookBrokerWrite).
type served struct {
	mu       sync.Mutex
	requests map[string]map[string]int
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (s *served) OnBrokerWrite(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	addr := net.JoinHostPort(meta.Host, fmt.Sprint(meta.Port))
	if s.requests == nil {
		s.requests = map[string]map[string]int{}
	}
	if s.requests[addr] == nil {
		s.requests[addr] = map[string]int{}
	}
	s.requests[addr][kmsg.NameForKey(key)]++
}

// print shows the VIP's line first: lookups only, the data went to the brokers themselves.
func (s *served) print(out io.Writer, vip string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := slices.SortedFunc(maps.Keys(s.requests), func(a, b string) int {
		if (a == vip) != (b == vip) {
			if a == vip {
				return -1
			}
			return 1
		}
		return cmp.Compare(a, b)
	})
	for _, addr := range addrs {
		who := "broker"
		if addr == vip {
			who = "VIP"
		}
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(s.requests[addr])) {
			parts = append(parts, fmt.Sprintf("%s %d", name, s.requests[addr][name]))
		}
		fmt.Fprintf(out, "  %-7s %-21s %s\n", who, addr, strings.Join(parts, ", "))
	}
}
