package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

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
	if want := (discovery.Instance{ID: "a:1", Host: "a", Port: 1, NodeID: 7, Rack: "r1", Weight: 3, Source: "file"}); u.Instances[0] != want || u.Explicit {
		t.Errorf("explicit %v, %+v", u.Explicit, u.Instances[0])
	}
	if u := await(t, run(t, &FileConfig{Path: path}, Deps{}), "a file that is there", is("a:1 b:2 c:3")); !u.Explicit {
		t.Error("a file that is there at the start is not taken as an operator's word")
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

// A file that is being written is read once it has stopped changing, however good its first lines are.
func TestFileWaitsUntilItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := brokersFile(t)
		replace(t, path, "- a:1\n")
		var writing sync.WaitGroup
		writing.Go(func() {
			for i := range 4 {
				time.Sleep(fileSettle * 2 / 3)
				w, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
				if err == nil {
					_, err = fmt.Fprintf(w, "- b%d:1\n", i)
				}
				if err := errors.Join(err, w.Close()); err != nil {
					t.Error(err)
				}
			}
		})
		f := &file{Deps: Deps{}.withDefaults("file"), path: path}
		if changed, err := f.read(t.Context(), &fsnotify.Watcher{}); !changed || err != nil || len(f.list) != 5 {
			t.Errorf("changed %v, %v, %v: want all five", changed, err, f.list)
		}
		writing.Wait()
	})
}

// What stands where the file should be, and how one file takes the place of another.
func TestFilesThatAreNoPlainFiles(t *testing.T) {
	path := brokersFile(t)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	rec := run(t, &FileConfig{Path: path}, Deps{})
	await(t, rec, "a pipe", failsWith("is no file"))
	elsewhere := brokersFile(t)
	link := func(text string) {
		t.Helper()
		elsewhere += "2"
		if err := errors.Join(os.WriteFile(elsewhere, []byte(text), 0o600), os.Symlink(elsewhere, path+".new"), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	link(listText("a:1", "b:2"))
	await(t, rec, "a link to a file elsewhere", is("a:1 b:2"))
	link(listText("a:1", "c:3"))
	if u := await(t, rec, "a link to another", is("a:1 c:3")); !u.Explicit {
		t.Error("a link that was renamed is not taken as an operator's word")
	}
	// Away, and there again: whoever wrote it may not have done so at once, and not be done.
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("- a:1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if u := await(t, rec, "deleted and created", is("a:1")); u.Explicit {
		t.Error("a file that was deleted and created is taken as an operator's word")
	}
	replace(t, path, listText("d:4"))
	if u := await(t, rec, "renamed", is("d:4")); !u.Explicit {
		t.Error("one that was renamed then is not")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await(t, rec, "away", failsWith("no such file"))
	if err := os.WriteFile(path, []byte("- e:5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if u := await(t, rec, "away for longer, and created", is("e:5")); u.Explicit {
		t.Error("a file that was away for longer is taken as an operator's word")
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

// An answer is asked for again when its TTL is over, not before a second has passed, and at the latest after the interval.
func TestDNSFollowsTheTTL(t *testing.T) {
	f := startFakeDNS(t, "10.0.0.1:1")
	ask := func(ttl uint32, interval time.Duration) (*recorder, func() int) {
		f.set(func() { f.ttl, f.queries = ttl, 0 })
		rec := run(t, &DNSConfig{Name: "kafka.example.com", Port: 9092, Record: "a", Server: f.LocalAddr().String(), Interval: interval}, Deps{})
		return rec, func() (n int) { f.set(func() { n = f.queries }); return n }
	}
	rec, asked := ask(1, maxPoll)
	f.set(func() { f.addrs = []string{"10.0.0.2:1"} })
	await(t, rec, "after the TTL", is("10.0.0.2:9092"))
	if n := asked(); n > 5 {
		t.Errorf("asked %d times", n)
	}
	f.set(func() { f.ttl = 3600 }) // so that the ones that run ask no more
	time.Sleep(1200 * time.Millisecond)
	_, asked = ask(0, maxPoll)
	time.Sleep(2500 * time.Millisecond)
	if n := asked(); n < 2 || n > 4 {
		t.Errorf("asked %d times in 2.5 s with a TTL of 0", n)
	}
	f.set(func() { f.ttl = 3600 })
	time.Sleep(1200 * time.Millisecond)
	_, asked = ask(3600, 200*time.Millisecond)
	time.Sleep(time.Second)
	if n := asked(); n < 3 || n > 6 {
		t.Errorf("asked %d times in 1 s at an interval of 200 ms", n)
	}
}

// Records that are no broker are left out with their reason; the others hold.
func TestDNSLeavesOutWhatIsNoBroker(t *testing.T) {
	f := startFakeDNS(t, "b-1.example.com:9092", "b-2.example.com:0", ".:9092", "B-1.example.com:9092")
	c := DNSConfig{Name: "_kafka._tcp.example.com", Port: 9092, Server: f.LocalAddr().String(), Interval: minPoll}
	rec := run(t, &c, Deps{})
	reasons := func() (out []string) {
		for _, s := range last(rec).Skipped {
			out = append(out, s.Reason)
		}
		slices.Sort(out)
		return out
	}
	await(t, rec, "the one that is", is("b-1.example.com:9092"))
	if got, want := reasons(), []string{"bad_address", "duplicate", "no_port"}; !slices.Equal(got, want) {
		t.Errorf("skipped for %q, want %q", got, want)
	}
	f.set(func() { f.addrs = []string{".:0"} }) // RFC 2782: there is no such service
	await(t, rec, "a service that is declared away", failsWith("no usable record"))
	f.set(func() { f.addrs = []string{"0.0.0.0:1", "10.0.0.1:1", "10.0.0.1:1", "[::]:1", "224.0.0.1:1"} })
	c.Name = "kafka.example.com"
	rec = run(t, &c, Deps{})
	await(t, rec, "the one address that is", is("10.0.0.1:9092"))
	if got, want := reasons(), []string{"bad_address", "bad_address", "bad_address", "duplicate"}; !slices.Equal(got, want) {
		t.Errorf("skipped for %q, want %q", got, want)
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
	// A seed whose address is another cluster's by now: with the pool's cluster id known, it is passed over from the start on.
	b.set(func() { b.of = "other" })
	await(t, rec, "another cluster", failsWith(`of cluster "other", the pool's is "fake"`))
	a.set(func() { a.state = "" })
	c := &KafkaConfig{Seeds: []string{b.Addr().String(), a.Addr().String()}, Interval: minPoll}
	await(t, run(t, c, Deps{ClusterID: "fake"}), "the seed of the right cluster", is(strings.Join(both, " ")))
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

// A seed that takes all of the time is asked last the next time.
func TestKafkaComesToEverySeed(t *testing.T) {
	slow, good := startFakeKafka(t), startFakeKafka(t)
	slow.set(func() { slow.state = "hang" })
	k := &kafka{Deps: Deps{Name: "kafka"}, seeds: []string{slow.Addr().String(), good.Addr().String()}}
	for _, want := range []string{"", "a:1 b:2"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		u, err := k.read(ctx)
		cancel()
		if addrs(u) != want || (err != nil) != (want == "") {
			t.Errorf("%q, %v, want %q", addrs(u), err, want)
		}
	}
}

// A registry that never answers is given up after a time, said to, and asked again.
func TestPollsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &poller{again: newAgain(), Deps: Deps{Name: "dns"}.withDefaults("dns"), interval: defaultPoll, read: func(ctx context.Context) (discovery.Update, error) {
			<-ctx.Done()
			return discovery.Update{}, ctx.Err()
		}}
		rec, stop := started(p)
		time.Sleep(time.Minute)
		synctest.Wait()
		_, _ = stop()
		all := rec.all()
		if n := len(all); n < 8 || n > 12 || all[0].Err == nil || !strings.Contains(all[0].Err.Error(), "no answer within 5s") {
			t.Errorf("%d answers in a minute, the first %+v", n, all[0])
		}
	})
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
