package backends

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
)

// cluster3 is the truth of a small cluster; each broker of a script tells its own version of it.
type cluster3 struct {
	brokers    []int32
	topics     map[string]topic3
	controller int32
	fenced     bool // DescribeCluster has a fenced broker 3, which Metadata hides
}

type topic3 struct {
	id     byte
	epochs []int32
}

func clusterA() cluster3 {
	return cluster3{brokers: []int32{0, 1, 2}, controller: 1, topics: map[string]topic3{
		"orders": {'o', []int32{5, 5, 5}}, "audit": {'a', []int32{5}},
	}}
}

func (c cluster3) with(name string, id byte, epochs ...int32) cluster3 {
	topics := map[string]topic3{}
	for n, t := range c.topics {
		topics[n] = t
	}
	topics[name] = topic3{id, epochs}
	c.topics = topics
	return c
}

func (c cluster3) without(name string) cluster3 {
	c = c.with(name, 0)
	delete(c.topics, name)
	return c
}

func (c cluster3) only(brokers ...int32) cluster3 { c.brokers = brokers; return c }

func (c cluster3) under(controller int32) cluster3 { c.controller = controller; return c }

func (c cluster3) answer(req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.MetadataRequest:
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		resp.ClusterID, resp.ControllerID = kmsg.StringPtr("A"), c.controller
		for _, id := range c.brokers {
			resp.Brokers = append(resp.Brokers, kmsg.MetadataResponseBroker{NodeID: id, Host: "b", Port: 9092 + id})
		}
		for _, name := range []string{"orders", "audit", "new"} {
			tp, ok := c.topics[name]
			if !ok {
				continue
			}
			rt := kmsg.MetadataResponseTopic{Topic: kmsg.StringPtr(name), TopicID: [16]byte{tp.id}}
			for i, e := range tp.epochs {
				rt.Partitions = append(rt.Partitions, kmsg.MetadataResponseTopicPartition{Partition: int32(i), Leader: int32(i), LeaderEpoch: e})
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	case *kmsg.DescribeClusterRequest:
		resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
		resp.ClusterID, resp.ControllerID = "A", c.controller
		for _, id := range c.brokers {
			resp.Brokers = append(resp.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: id, Host: "b", Port: 9092 + id})
		}
		if c.fenced {
			resp.Brokers = append(resp.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: 3, Host: "b", Port: 9095, IsFenced: true})
		}
		return resp
	}
	panic("unexpected request")
}

// answered encodes an answer to a request frame, as a broker would.
func answered(frame []byte, answer func(kmsg.Request) kmsg.Response) ([]byte, error) {
	req := kmsg.RequestForKey(int16(binary.BigEndian.Uint16(frame[4:])))
	req.SetVersion(int16(binary.BigEndian.Uint16(frame[6:])))
	body := frame[14+len(clientID):]
	if req.IsFlexible() {
		body = body[1:]
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, err
	}
	b := append([]byte{0, 0, 0, 0}, frame[8:12]...)
	if req.IsFlexible() {
		b = append(b, 0)
	}
	b = answer(req).AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}

// script is a refresher over brokers that each tell what says has for them; nil is a broker that does not answer.
type script struct {
	t     *testing.T
	r     *refresher
	now   snapshot.Time
	says  map[string]*cluster3
	asked []string

	cur     *snapshot.Snapshot
	retired snapshot.Retired
	doubted int
}

func newScript(t *testing.T) *script {
	s := &script{t: t, says: map[string]*cluster3{}}
	s.r = &refresher{now: func() snapshot.Time { s.now++; return s.now }}
	s.r.send = func(_ context.Context, addr string, frame, _ []byte) ([]byte, error) {
		c := s.says[addr]
		if c == nil {
			return nil, errors.New("no answer")
		}
		if frame[5] == 3 {
			s.asked = append(s.asked, addr)
		}
		return answered(frame, c.answer)
	}
	return s
}

var modern = &snapshot.APIs{Keys: []kmsg.ApiVersionsResponseApiKey{
	{ApiKey: 3, MaxVersion: 13}, {ApiKey: 18, MaxVersion: 4}, {ApiKey: 55, MaxVersion: 2}, {ApiKey: 60, MaxVersion: 2},
}}

// round runs a round over brokers in that order, each telling its version, and returns what came of it in words.
func (s *script) round(brokers string, says ...*cluster3) string {
	s.t.Helper()
	p := plan{
		cur: s.cur, retired: &s.retired, doubted: s.doubted, overlap: modern, kraft: true,
		rules: snapshot.Rules{ClusterID: "A"}, timeout: time.Second,
	}
	s.asked = nil
	for i, b := range brokers {
		p.askees = append(p.askees, askee{string(b), modern})
		s.says[string(b)] = says[min(i, len(says)-1)]
	}
	o := s.r.round(s.t.Context(), p)
	s.doubted = o.doubted
	out := ""
	for _, r := range o.rejected {
		out += fmt.Sprintf("%s: %s; ", r.broker, r.fault.Reason)
	}
	for _, f := range o.failed {
		out += f.broker + " failed; "
	}
	switch {
	case o.accepted != nil:
		s.retired.Replace(s.cur, o.accepted)
		s.cur = o.accepted
		return out + "accepted from " + o.broker
	case o.confirmed != 0 && len(o.rejected) == 0:
		return out + "confirmed by " + o.broker
	case o.confirmed != 0:
		return out + "kept"
	}
	return out + "nothing"
}

func (s *script) want(want, got string) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("got %q, want %q", got, want)
	}
}

// epochs are the leader epochs of a topic's partitions.
func epochs(t *snapshot.Topic) (es []int32) {
	for p := range t.All {
		es = append(es, p.LeaderEpoch)
	}
	return es
}

func leaders(t *snapshot.Topic) (ids []int32) {
	for p := range t.All {
		ids = append(ids, p.Leader)
	}
	return ids
}

func ptr(c cluster3) *cluster3 { return &c }

// started is a script whose view is the truth, told by all brokers before.
func started(t *testing.T) *script {
	s := newScript(t)
	s.want("accepted from a", s.round("abc", ptr(clusterA())))
	s.want("confirmed by a", s.round("abc", ptr(clusterA())))
	return s
}

func TestARoundAsksOneBroker(t *testing.T) {
	s := started(t)
	s.want("confirmed by b", s.round("bca", ptr(clusterA().under(2))))
	if diff := cmp.Diff([]string{"b"}, s.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	s.want("a failed; confirmed by b", s.round("abc", nil, ptr(clusterA())))
	s.want("a failed; b failed; c failed; nothing", s.round("abc", nil))
	s.want("accepted from c", s.round("cab", ptr(clusterA().with("new", 'n', 0))))
	s.want("accepted from a", s.round("abc", ptr(clusterA().with("new", 'n', 0, 0).with("orders", 'o', 6, 5, 5))))
	fenced := clusterA().with("new", 'n', 0, 0).with("orders", 'o', 6, 5, 5)
	fenced.fenced = true
	s.want("accepted from a", s.round("abc", &fenced))
	if len(s.cur.Described) != 4 {
		t.Error("a fenced broker, which only DescribeCluster tells of, was not noticed")
	}
	if epochs(s.cur.Topic("orders"))[0] != 6 || len(epochs(s.cur.Topic("new"))) != 2 {
		t.Error("the newer view was not taken over")
	}
}

// One broker's word against the others': the view stays, whichever is asked first, for as long as it takes.
func TestALaggingBrokerIsNotBelieved(t *testing.T) {
	for reason, lags := range map[snapshot.Reason]cluster3{
		snapshot.Shrunk:     clusterA().only(0, 1),
		snapshot.LowerEpoch: clusterA().with("orders", 'o', 5, 4, 5),
		snapshot.TopicGone:  clusterA().without("audit"),
		snapshot.HalfBuilt:  clusterA().with("orders", 'o', 5, 5),
	} {
		t.Run(string(reason), func(t *testing.T) {
			s := started(t)
			for range 10 {
				s.want("a: "+string(reason)+"; kept", s.round("abc", &lags, ptr(clusterA()), ptr(clusterA())))
				s.want("confirmed by b", s.round("bca", ptr(clusterA()), ptr(clusterA()), &lags))
			}
			// A better view among the others is taken at once.
			s.want("accepted from b", s.round("abc", &lags, ptr(clusterA().with("new", 'n', 0))))
		})
	}
}

// What all reachable brokers say is believed at once, if there are several.
func TestWhatAllSayIsBelieved(t *testing.T) {
	for name, now := range map[string]cluster3{
		"a broker has left":           clusterA().only(0, 1),
		"an unclean election":         clusterA().with("orders", 'o', 5, 4, 5),
		"a topic is deleted":          clusterA().without("audit"),
		"a topic is recreated":        clusterA().with("audit", 'b', 0),
		"a topic has fewer partition": clusterA().with("orders", 'o', 5, 5),
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t)
			s.want("c failed; accepted from a", s.round("cab", nil, &now, &now))
			s.want("confirmed by c", s.round("cab", &now))
		})
	}
}

// The last broker left is believed at its third word.
func TestASingleBrokerIsBelievedAtTheThirdRound(t *testing.T) {
	s := started(t)
	now := ptr(clusterA().only(0))
	s.want("a: shrunk; kept", s.round("a", now))
	s.want("a: shrunk; kept", s.round("a", now))
	s.want("accepted from a", s.round("a", now))
}

// Most brokers know of a deletion, and one that is cut off from its cluster goes on telling of the topic: within three
// rounds most have their way, and the one does not bring the topic back.
func TestMostBrokersHaveTheirWayWithinThreeRounds(t *testing.T) {
	for _, order := range []string{"abc", "bca", "cab"} {
		t.Run(order, func(t *testing.T) {
			s := started(t)
			now, old := ptr(clusterA().without("audit")), ptr(clusterA())
			tell := map[byte]*cluster3{'a': old, 'b': now, 'c': now}
			rounds := 0
			for s.cur.Topic("audit") != nil {
				o := order[rounds%3:] + order[:rounds%3]
				if s.round(o, tell[o[0]], tell[o[1]], tell[o[2]]); rounds > 4 {
					t.Fatal("the deletion was never adopted")
				}
				rounds++
			}
			// A round that begins at the broker that is cut off may confirm the view before anyone has spoken against it.
			if limit := 3 + map[bool]int{true: 1}[order[0] == 'a']; rounds > limit {
				t.Errorf("it took %d rounds, want %d", rounds, limit)
			}
			for range 5 {
				s.want("a: topic_id_back; kept", s.round("abc", old, now, now))
				s.want("confirmed by b", s.round("bca", now, now, old))
			}
		})
	}
}

// Two brokers that contradict each other: neither is most.
func TestATieChangesNothing(t *testing.T) {
	s := started(t)
	for range 6 {
		s.want("a: shrunk; kept", s.round("ab", ptr(clusterA().only(0, 1)), ptr(clusterA())))
		s.want("confirmed by b", s.round("ba", ptr(clusterA()), ptr(clusterA().only(0, 1))))
	}
}

// Changes that go on while brokers are asked: the first broker's word is backed by those who know more.
func TestDoubtsThatGrow(t *testing.T) {
	s := started(t)
	first, second := ptr(clusterA().without("audit")), ptr(clusterA().without("audit").only(0, 1))
	s.want("accepted from a", s.round("abc", first, second, second))
	if len(s.cur.Brokers) != 3 {
		t.Error("what only some say was taken over")
	}
}

// An id that was there before cannot be, so it takes more than one round even if all say so.
func TestAnIDThatIsOver(t *testing.T) {
	s := started(t)
	now, old := ptr(clusterA().with("audit", 'b', 0)), ptr(clusterA())
	s.want("accepted from a", s.round("abc", now))
	s.want("a: topic_id_back; kept", s.round("abc", old))
	s.want("a: topic_id_back; kept", s.round("abc", old))
	s.want("accepted from a", s.round("abc", old))
	s.want("confirmed by b", s.round("bca", old))
	s.want("accepted from a", s.round("abc", ptr(old.with("new", 'n', 0)))) // it is not held against it any more
}

func TestARefusedAnswerSendsTheRoundOn(t *testing.T) {
	s := started(t)
	empty := ptr(clusterA().only())
	s.want("a: no_brokers; accepted from b", s.round("abc", empty, ptr(clusterA().with("new", 'n', 0))))
	s.want("a: no_brokers; b: no_brokers; c: no_brokers; kept", s.round("abc", empty))
	if diff := cmp.Diff([]string{"a", "b", "c"}, s.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	fresh := newScript(t)
	fresh.want("a: no_brokers; accepted from b", fresh.round("ab", empty, ptr(clusterA())))
}

func TestARoundIsBounded(t *testing.T) {
	s := started(t)
	s.round("abcdefghijkl", ptr(clusterA().only(0, 1)), ptr(clusterA()))
	if len(s.asked) != maxOpinions {
		t.Errorf("%d brokers were asked about a doubt, want %d", len(s.asked), maxOpinions)
	}
	s.round("abcdefghijkl", ptr(clusterA().only()))
	if len(s.asked) != maxAsks {
		t.Errorf("%d brokers were asked, want %d", len(s.asked), maxAsks)
	}
}

// The versions asked for are those of the pool, so that the view does not depend on which broker is asked.
func TestTheVersionsAskedFor(t *testing.T) {
	apis := func(keys ...int16) *snapshot.APIs {
		a := &snapshot.APIs{}
		for i := 0; i < len(keys); i += 3 {
			a.Keys = append(a.Keys, kmsg.ApiVersionsResponseApiKey{ApiKey: keys[i], MinVersion: keys[i+1], MaxVersion: keys[i+2]})
		}
		return a
	}
	for _, c := range []struct {
		name           string
		broker, pool   *snapshot.APIs
		meta, describe int16 // -1: not asked
	}{
		{"Kafka 4.3", modern, modern, 13, 2},
		{"before the first view", modern, nil, 13, 2},
		{"Kafka 1.1", apis(3, 0, 5), apis(3, 0, 5), 5, -1},
		{"3.9 in a pool with 1.1", apis(3, 0, 12, 60, 0, 1), apis(3, 0, 5), 5, -1},
		{"newer than kvip", apis(3, 0, 20, 60, 0, 9), nil, 13, 2},
		{"too old for a cluster id", apis(3, 0, 1), nil, -1, -1},
	} {
		meta, desc, err := requests(plan{overlap: c.pool}, askee{"b", c.broker})
		got := [2]int16{-1, -1}
		if err == nil {
			got[0] = meta.Version
		}
		if desc != nil {
			got[1] = desc.Version
		}
		if got != [2]int16{c.meta, c.describe} {
			t.Errorf("%s: Metadata and DescribeCluster at %v, want %d and %d (%v)", c.name, got, c.meta, c.describe, err)
		}
	}
}
