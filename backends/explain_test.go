package backends

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvip/kvip/protocol/forward"
)

// What is explained is what happens: the forward's broker, the list's head, and everybody who gets less than their share.
func TestWhatIsExplainedIsWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.cluster("A", six)
		p := w.start(Config{Heads: "ring"})
		none := p.Explain(netip.MustParseAddrPort("192.0.2.1:0"))
		if none.Forward.Broker != "" || none.Forward.NodeID != -1 || none.Head.Broker != "" || !strings.Contains(none.Head.Why, "no registry") {
			t.Errorf("before anything is known: %+v", none)
		}
		w.registry.list(9092, 9093, 9094, 9095, -9096, 9097)
		defer emptyLists(c, 5)()
		eventually(t, 5*time.Second, "all are known", func() bool {
			s := w.states()
			return w.now() != nil && s[addr(9092)] == "serving" && s[addr(9096)] == "draining" && s[addr(9097)] == "down no_brokers"
		})
		for i := range 200 {
			client := netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:%d", i, 1000+i))
			e := p.Explain(client)
			if r := findAs(w, forward.ClientKey(client)); r.Broker != e.Forward.Broker || e.Forward.Broker == "" {
				t.Fatalf("%s: explained %+v, the forward went to %q (%v)", client, e.Forward, r.Broker, r.Err)
			}
			if !e.Forward.Sticky || e.Forward.Why == "" || e.Head.Broker != e.Forward.Broker || e.Client != client.String() {
				t.Fatalf("%+v", e)
			}
		}
		e := p.Explain(netip.MustParseAddrPort("[::ffff:192.0.2.1]:0"))
		if e.Client != "192.0.2.1" || len(e.Skipped) != 2 {
			t.Errorf("%+v", e)
		}
		for i, want := range []string{"its weight is 0", "its probe fails: no_brokers"} {
			if i < len(e.Skipped) && !strings.HasPrefix(e.Skipped[i].Why, want) {
				t.Errorf("%s is skipped because %q, want %q", e.Skipped[i].Broker, e.Skipped[i].Why, want)
			}
		}
	})
}

// source-hash looks at the port: without it, what is explained is only one of the brokers that the client gets.
func TestExplainingSourceHashTakesThePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cluster("A", three)
		p := w.up(Config{Policy: "source-hash", Heads: "source-hash"}, three...)
		for client, sticky := range map[string]bool{"192.0.2.1:40000": true, "192.0.2.1:0": false} {
			e := p.Explain(netip.MustParseAddrPort(client))
			for _, c := range []Choice{e.Forward, e.Head} {
				if c.Sticky != sticky || strings.Contains(c.Why, "another port") == sticky {
					t.Errorf("%s: %+v", client, c)
				}
			}
		}
	})
}
