package provider

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvip/kvip/discovery"
)

// run builds a provider, runs it until the test ends, and waits for its first answer.
func run(t *testing.T, c Config, deps Deps) *recorder {
	t.Helper()
	p, err := c.Build(deps)
	if err != nil {
		t.Fatal(err)
	}
	rec, stop := started(p)
	t.Cleanup(func() { _, _ = stop() })
	if err := rec.await("an answer", func(discovery.Update) bool { return true }); err != nil {
		t.Fatal(err)
	}
	return rec
}

func last(rec *recorder) discovery.Update {
	all := rec.all()
	return all[len(all)-1]
}

func await(t *testing.T, rec *recorder, what string, pleases func(discovery.Update) bool) discovery.Update {
	t.Helper()
	if err := rec.await(what, pleases); err != nil {
		t.Fatal(err)
	}
	return last(rec)
}

func is(want string) func(discovery.Update) bool {
	return func(u discovery.Update) bool { return u.Err == nil && addrs(u) == want }
}

func failsWith(part string) func(discovery.Update) bool {
	return func(u discovery.Update) bool { return u.Err != nil && strings.Contains(u.Err.Error(), part) }
}

// A file that is cut short, or not as it should be, is an error and never a change; one that is written in place is a
// proposal, one that is renamed an operator's word.
func TestFileBelievesOnlyWholeFiles(t *testing.T) {
	path := brokersFile(t)
	rec := run(t, &FileConfig{Path: path}, Deps{})
	await(t, rec, "nothing there", failsWith("no such file"))
	replace(t, path, "- {address: \"a:1\", rack: r1, weight: 3, node_id: 7}\n- b:2\n- c:3\n")
	u := await(t, rec, "a file that appears", is("a:1 b:2 c:3"))
	if want := (discovery.Instance{ID: "a:1", Host: "a", Port: 1, NodeID: 7, Rack: "r1", Weight: 3, Source: "file"}); u.Instances[0] != want || !u.Explicit {
		t.Errorf("explicit %v, %+v", u.Explicit, u.Instances[0])
	}
	for text, want := range map[string]string{
		"":                                "is empty",
		"\n":                              "is empty",
		"- a:1\n- b:2\n- c":               "cut short",
		"- a:1\n- b:\n":                   "cannot be read",
		`{"brokers": ["a:1", "b`:          "cut short",
		"[\"a:1\",\n":                     "cannot be read",
		"brokers: []\n":                   "lists no broker",
		"brokers: [\"a:1\"]\nbroker: x\n": "broker",
		"- a:1\n- a:1\n":                  "brokers[0] already",
		"\x00\x01\x02\n":                  "cannot be read",
	} {
		replace(t, path, text)
		if u := await(t, rec, text, failsWith(want)); len(u.Instances) != 0 {
			t.Errorf("%q lists %v", text, u.Instances)
		}
	}
	replace(t, path, listText("a:1", "b:2", "c:3"))
	await(t, rec, "whole again", is("a:1 b:2 c:3"))
	// Written in place, slowly: the first part alone is seen by nobody but as a proposal.
	if err := os.WriteFile(path, []byte("- a:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if u := await(t, rec, "in place", is("a:1")); u.Explicit {
		t.Error("a file that was written in place is taken as an operator's word")
	}
	replace(t, path, listText("a:1", "d:4"))
	if u := await(t, rec, "renamed", is("a:1 d:4")); !u.Explicit {
		t.Error("a file that was renamed is not")
	}
}

func TestDNSAsksForEveryKindOfRecord(t *testing.T) {
	f := startFakeDNS(t, "10.0.0.1:1", "10.0.0.2:1", "[2001:db8::3]:1")
	c := DNSConfig{Name: "kafka.example.com", Port: 9093, Server: f.LocalAddr().String(), Interval: minPoll}
	for record, want := range map[string]string{
		"": "10.0.0.1:9093 10.0.0.2:9093 [2001:db8::3]:9093", "a": "10.0.0.1:9093 10.0.0.2:9093", "aaaa": "[2001:db8::3]:9093",
	} {
		c.Record = record
		await(t, run(t, &c, Deps{}), record, is(want))
	}
	f.set(func() {
		f.addrs = []string{"b-1.example.com:9092", "b-2.example.com:9093", "b-3.example.com:9092"}
		f.weights = map[string]uint16{"b-2.example.com:9093": 5}
		f.backups = map[string]bool{"b-3.example.com:9092": true}
	})
	c.Record = "srv"
	rec := run(t, &c, Deps{})
	u := await(t, rec, "services", is("b-1.example.com:9092 b-2.example.com:9093"))
	if u.Instances[0].Weight != 1 || u.Instances[1].Weight != 5 || len(u.Skipped) != 1 || u.Skipped[0].Reason != "priority" {
		t.Errorf("got %+v, skipped %+v", u.Instances, u.Skipped)
	}
	// Whatever goes wrong, nobody is told of an empty list.
	for _, state := range []string{"fail", "none", ""} {
		f.set(func() { f.state, f.addrs = state, nil })
		await(t, rec, "trouble "+state, func(u discovery.Update) bool { return u.Err != nil && len(u.Instances) == 0 })
	}
}

// What the cluster lists is asked when no seed answers, and another cluster's answer is refused.
func TestKafkaAsksOnWhenItsSeedsAreGone(t *testing.T) {
	a, b := startFakeKafka(t), startFakeKafka(t)
	a.set(func() { a.addrs = []string{a.Addr().String(), b.Addr().String()} })
	b.set(func() { b.addrs = []string{b.Addr().String(), "c:3"} })
	rec := run(t, &KafkaConfig{Seeds: []string{a.Addr().String()}, Interval: minPoll}, Deps{})
	both := []string{a.Addr().String(), b.Addr().String()}
	slices.Sort(both)
	u := await(t, rec, "the seed's list", is(strings.Join(both, " ")))
	want := discovery.Instance{ID: "0", Host: "127.0.0.1", Port: u.Instances[0].Port, NodeID: 0, Rack: "r1", Weight: 1, Source: "kafka"}
	if diff := cmp.Diff(want, u.Instances[0]); diff != "" {
		t.Error(diff)
	}
	a.set(func() { a.state = "fail" })
	await(t, rec, "the other broker's list", is(b.Addr().String()+" c:3"))
}

func TestZookeeperReadsEveryVersionOfANode(t *testing.T) {
	z := zookeeper{Deps: Deps{Name: "zookeeper"}}
	for _, c := range []struct{ name, listener, node, want, reason string }{
		{"version 1", "", `{"jmx_port":-1,"timestamp":"1","host":"H1","version":1,"port":9092}`, "h1:9092", ""},
		{"version 2", "", `{"version":2,"host":"h2","port":9092,"endpoints":["PLAINTEXT://h2:9092","SSL://h2:9093"]}`, "h2:9092", ""},
		{"version 3, TLS only", "", `{"version":3,"host":null,"port":-1,"endpoints":["SSL://h3:9093"],"rack":"r"}`, "", "no_listener"},
		{"version 4", "", `{"version":4,"host":null,"port":-1,"endpoints":["EXTERNAL://h4:1","INTERNAL_1://[::1]:2"],"listener_security_protocol_map":{"EXTERNAL":"SASL_SSL","INTERNAL_1":"PLAINTEXT"}}`, "[::1]:2", ""},
		{"version 5, by name", "external", `{"version":5,"host":null,"port":-1,"endpoints":["EXTERNAL://h5:1","I://h5:2"],"listener_security_protocol_map":{"EXTERNAL":"SASL_SSL","I":"PLAINTEXT"},"features":{}}`, "h5:1", ""},
		{"no such listener", "other", `{"version":2,"host":"h2","port":9092,"endpoints":["PLAINTEXT://h2:9092"]}`, "", "no_listener"},
		{"nowhere", "", `{"version":2,"endpoints":["PLAINTEXT://0.0.0.0:9092"]}`, "", "bad_address"},
		{"no port", "", `{"version":2,"endpoints":["PLAINTEXT://h"]}`, "", "no_port"},
		{"torn", "", `{"version":2,"endpo`, "", "bad_json"},
		{"nothing", "", ``, "", "bad_json"},
	} {
		z.cfg.Listener = c.listener
		in, reason := z.instance("7", c.node)
		if reason != c.reason || c.reason == "" && (in.Addr() != c.want || in.NodeID != 7) {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, in.Addr(), reason, c.want, c.reason)
		}
	}
	if _, reason := z.instance("x", "{}"); reason != "bad_id" {
		t.Errorf("a node that is no id: %q", reason)
	}
}

// The poll's pause after a failure is short, and ends when somebody asks.
func TestPollsAreQuickAfterAFailure(t *testing.T) {
	f := startFakeDNS(t, "10.0.0.1:1")
	f.set(func() { f.state = "fail" })
	c := DNSConfig{Name: "kafka.example.com", Port: 9092, Record: "a", Server: f.LocalAddr().String(), Interval: maxPoll}
	rec := run(t, &c, Deps{})
	f.set(func() { f.state = "" })
	begun := time.Now()
	await(t, rec, "well again", is("10.0.0.1:9092"))
	if took := time.Since(begun); took > pollRetry+time.Second {
		t.Errorf("%v until the next read", took)
	}
}
