//go:build e2e

package e2e

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
	"github.com/kvip/kvip/protocol/answer/answertest"
)

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// compared is the shared cluster as the requests of answertest need it.
func compared(t *testing.T, k *lab.Kafka) answertest.Cluster {
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.Topics = 13, []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr(topics[0])}}
	resp, err := lab.Exchange(within(t, 10*time.Second), k.Node(0).Addr(), q)
	if err != nil {
		t.Fatal(err)
	}
	return answertest.Cluster{Topics: topics, ID: resp.(*kmsg.MetadataResponse).Topics[0].TopicID}
}

// Every version of every answered and compared key, from kvip and from a broker: BL-03 and BL-04 are rows of it.
func TestEveryAnswerIsABrokersFieldByField(t *testing.T) {
	k, consul := sharedLab(t)
	cluster := compared(t, k)
	for _, lookup := range []string{"snapshot", "forward"} {
		t.Run(lookup, func(t *testing.T) {
			g := start(t, consul, settings{vip: "    lookup: " + lookup})
			n := 0
			for _, c := range cluster.Cases(func(key int16) int16 { return map[int16]int16{3: 13, 18: 5, 60: 2, 10: 6}[key] }) {
				n++
				if err := compare(t, c, k.Node(0).Addr(), g.addr); err != nil {
					t.Errorf("%s: %v", c, err)
				}
			}
			t.Logf("%d requests compared", n)
		})
	}
}

func compare(t *testing.T, c answertest.Case, broker, vip string) error {
	var responses [2]kmsg.Response
	for i, addr := range []string{broker, vip} {
		frame, err := exchange(t, addr, c.Frame(int32(i)))
		if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
		if responses[i], err = answertest.Decode(c.Request, frame); err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
	}
	if diff := answertest.Diff(responses[0], responses[1]); diff != "" {
		return fmt.Errorf("(-broker +kvip)\n%s", diff)
	}
	return nil
}

// BL-03: the finalized features' epoch moves by itself, so it has to lie between the broker's before and after.
func TestFinalizedFeaturesEpochLiesBetweenTheBrokers(t *testing.T) {
	k, consul := sharedLab(t)
	g := start(t, consul, settings{})
	epoch := func(addr string) int64 {
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version, q.ClientSoftwareName, q.ClientSoftwareVersion = 4, "kvip", "1.0"
		resp, err := lab.Exchange(within(t, 10*time.Second), addr, q)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.ApiVersionsResponse).FinalizedFeaturesEpoch
	}
	// What kvip says may be as old as a probe interval and a publication: the broker's epoch from before that counts.
	before := epoch(k.Node(0).Addr())
	time.Sleep(3 * time.Second)
	got := epoch(g.addr)
	if after := epoch(k.Node(0).Addr()); got < before || got > after+1000 {
		t.Errorf("epoch %d, the broker's went from %d to %d", got, before, after)
	}
}

// BL-01: a client newer than the gateway, and one that skips ApiVersions.
func TestAClientThatIsNewerOrOlderThanNegotiation(t *testing.T) {
	k, consul := sharedLab(t)
	g := start(t, consul, settings{})
	for _, addr := range []string{k.Node(0).Addr(), g.addr} {
		c := dial(t, addr)
		_, _ = c.Write(unhex("000000170012007f0000001100017400096b7669702d7465737402"))
		got, err := readFrame(c)
		if want := unhex("00000010 00000011 0023 00000001 0012 0000 0004"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: ApiVersions v127: %x %v, want %x", addr, got, err, want)
		}
		_, _ = c.Write(unhex("00000016001200040000000200017400056b76697004312e3000"))
		if got, err := readFrame(c); err != nil || got[7] != 2 || got[8] != 0 || got[9] != 0 {
			t.Errorf("%s: ApiVersions v4 on the same connection: %x %v", addr, got, err)
		}
		if got, err := exchange(t, addr, unhex("0000000f000300000000000300017400000000")); err != nil || got[7] != 3 {
			t.Errorf("%s: Metadata v0 as the first request: %x %v", addr, got, err)
		}
		if got, err := exchange(t, addr, unhex("000000100003000e000000060001740000000000")); err == nil {
			t.Errorf("%s: Metadata v14 is answered: %x", addr, got)
		}
	}
}

// BL-04, beyond the comparison: nobody is ever handed the VIP's own address.
func TestNoAnswerHoldsTheVIPsAddress(t *testing.T) {
	k, consul := sharedLab(t)
	cluster := compared(t, k)
	g := start(t, consul, settings{listen: "127.0.0.77"})
	for _, c := range cluster.Cases(func(key int16) int16 { return map[int16]int16{3: 13, 18: -1, 60: 2, 10: 6}[key] }) {
		frame, err := exchange(t, g.addr, c.Frame(1))
		if err != nil {
			t.Errorf("%s: %v", c, err)
		}
		for _, bad := range []string{"127.0.0.77", "0.0.0.0", "[::1]"} {
			if bytes.Contains(frame, []byte(bad)) {
				t.Errorf("%s: the answer has %s", c, bad)
			}
		}
	}
}

// BL-15: what a lookup does to topics that do not exist is the broker's business.
func TestLookupsOfUnknownTopicsAreTheBrokers(t *testing.T) {
	k, consul := sharedLab(t)
	g := start(t, consul, settings{})
	ctx := within(t, time.Minute)
	errorOf := func(addr string, version int16, topic string) int16 {
		q := kmsg.NewPtrMetadataRequest()
		q.Version, q.Topics = version, []kmsg.MetadataRequestTopic{{Topic: &topic}}
		resp, err := lab.Exchange(ctx, addr, q)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.MetadataResponse).Topics[0].ErrorCode
	}
	send := func(hex string) int16 {
		frame, err := exchange(t, g.addr, unhex(hex))
		if err != nil {
			t.Fatal(err)
		}
		q := kmsg.NewPtrMetadataRequest()
		q.Version = int16(unhex(hex)[7])
		resp, err := answertest.Decode(q, frame)
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.MetadataResponse).Topics[0].ErrorCode
	}
	for _, c := range []struct {
		name, hex string
		created   bool
	}{
		{"ghost-a", "00000019000300040000000b00017400000001000767686f73742d6100", false},
		{"ghost-b", "00000019000300040000000b00017400000001000767686f73742d6201", true},
		{"ghost-c", "00000018000300030000000b00017400000001000767686f73742d63", true},
	} {
		if code := send(c.hex); code != 3 && code != 5 {
			t.Errorf("%s: error %d, want 3 (or 5 while it is being created)", c.name, code)
		}
		time.Sleep(time.Second)
		if code := errorOf(k.Node(1).Addr(), 4, c.name); (code == 0) != c.created {
			t.Errorf("%s: a broker says %d afterwards; created should be %v", c.name, code, c.created)
		}
	}
	if code := send("000000220003000c000000080001740002111111111111111111111111111111110000000000"); code != 100 {
		t.Errorf("unknown id: error %d, want 100", code)
	}
	if err := k.CreateTopic(ctx, "late", 1, 1); err != nil {
		t.Fatal(err)
	}
	if code := errorOf(g.addr, 9, "late"); code != 0 {
		t.Errorf("a topic created a moment ago: error %d", code)
	}
	q := kmsg.NewPtrMetadataRequest()
	q.Version, q.Topics = 5, []kmsg.MetadataRequestTopic{{Topic: &topics[0]}, {Topic: kmsg.StringPtr("ghost-d")}}
	resp, err := lab.Exchange(ctx, g.addr, q)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.(*kmsg.MetadataResponse).Topics; len(got) != 2 {
		t.Errorf("a known and an unknown topic: %+v", got)
	}
}
