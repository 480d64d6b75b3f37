//go:build e2e

package e2e

import (
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
)

// BL-06, plain listeners: kvip probes each broker every second, a balancer in front connects and closes twice a second, and
// somebody asks the VIP for a page every second, for 6 s (KVIP_FULL: 60 s). The brokers' logs say nothing of it, no topic
// appears, kvip's own log stays short, and nobody in front opens a connection to a broker.
func TestProbesAndFrontChecksLeaveLogsAlone(t *testing.T) {
	d := 6 * time.Second
	if full {
		d = time.Minute
	}
	k, consul := sharedLab(t)
	g := start(t, consul, settings{pool: "    health: {interval: 1s}"})
	time.Sleep(2 * time.Second) // its start is logged
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ctx := within(t, d+time.Minute)
	topicsOf := func() int {
		q := kmsg.NewPtrMetadataRequest()
		q.Version = 12
		resp, err := lab.Exchange(ctx, k.Node(0).Addr(), q)
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.(*kmsg.MetadataResponse).Topics)
	}
	var before []string
	for _, n := range k.Nodes() {
		before = append(before, read(n.LogPath()))
	}
	own, topicsBefore := read(g.LogPath()), topicsOf()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	checks := 0
	for began := time.Now(); time.Since(began) < d; checks++ {
		c, err := net.DialTimeout("tcp", g.addr, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if checks%2 == 0 {
			if resp, err := client.Get("http://" + g.addr + "/"); err == nil {
				_ = resp.Body.Close()
				t.Errorf("the VIP answers HTTP: %s", resp.Status)
			}
		}
		time.Sleep(time.Until(began.Add(time.Duration(checks+1) * 500 * time.Millisecond)))
	}
	for i, n := range k.Nodes() { // whose root level is WARN
		if said := strings.TrimPrefix(read(n.LogPath()), before[i]); said != "" {
			t.Errorf("node %d logged:\n%s", n.ID, said)
		}
	}
	if n := topicsOf(); n != topicsBefore {
		t.Errorf("%d topics, before %d", n, topicsBefore)
	}
	said := strings.TrimPrefix(read(g.LogPath()), own)
	lines := strings.Count(said, "\n") - strings.Count(said, `"level":"debug"`)
	t.Logf("%d connects and %d pages in front; kvip logged %d lines", checks, (checks+1)/2, lines)
	if lines > 5 {
		t.Errorf("kvip's log grew by\n%s", said)
	}
	if n := g.status(t).Pools[0].Forwards.Connections; n != 0 {
		t.Errorf("%d connections to brokers for front checks", n)
	}
}
