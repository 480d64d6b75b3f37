package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// output may be written and read at the same time.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestTheCommandStartsAClusterThatIsControlledAndLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c := Command{Kafka: DefaultKafka, Nodes: 2, Racks: []string{"a", "b"}, LogLevel: "WARN", Service: "kafka-orders", TLS: true, Consul: true,
		Peers: []string{"drip"}, Control: "127.0.0.1:0"}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, ended := &output{}, make(chan error, 1)
	go func() { ended <- c.Run(ctx, out) }()
	for !strings.Contains(out.String(), "Ctrl-C") {
		select {
		case err := <-ended:
			t.Fatalf("%v\n%s", err, out)
		default:
			_ = sleep(ctx, 20*time.Millisecond)
		}
	}
	for _, want := range []string{"bootstrap.servers: 127.0.0.1:", `rack "b"`, "keys: ca.pem", "service kafka-orders", "peer drip: 127.0.0.1:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	base := "http://" + regexp.MustCompile(`control: http://(\S+)/`).FindStringSubmatch(out.String())[1]
	for _, step := range []struct {
		method, path string
		status       int
		want         string
	}{
		{http.MethodGet, "/", 200, `"running":true`},
		{http.MethodPost, "/nodes/2/pause", 200, `"running":false`},
		{http.MethodPost, "/nodes/2/resume", 200, `"running":true`},
		{http.MethodPost, "/topics/orders?partitions=4&replicas=1", 200, `"orders"`},
		{http.MethodPost, "/nodes?rack=c", 200, `"id":3`},
		{http.MethodPost, "/reassign", 200, `"done"`},
		{http.MethodPost, "/elect", 200, `"done"`},
		{http.MethodPost, "/nodes/3/kill", 200, `"running":false`},
		{http.MethodPost, "/nodes/9/kill", 404, "1 to 3"},
		{http.MethodPost, "/nodes/1/tickle", 404, "kill, stop, pause"},
	} {
		req, err := http.NewRequestWithContext(ctx, step.method, base+step.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != step.status || !strings.Contains(string(body), step.want) {
			t.Errorf("%s %s: %d %s, want %d and %s", step.method, step.path, resp.StatusCode, body, step.status, step.want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*kvip-lab-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, m := range regexp.MustCompile(`pid (\d+)`).FindAllStringSubmatch(out.String(), -1) {
		if _, err := os.Stat("/proc/" + m[1]); err == nil {
			t.Errorf("process %s lives on", m[1])
		}
	}
}

func TestTheCommandRefusesWhatItCannotDo(t *testing.T) {
	for want, c := range map[string]Command{
		"--nodes 0":       {Kafka: DefaultKafka},
		"nothing to run":  {Kafka: withoutKafka},
		"no faulty peer":  {Kafka: withoutKafka, Peers: []string{"lazy"}},
		"need each other": {Kafka: DefaultKafka, Nodes: 1, SASL: []string{Plain}},
		"no Kafka":        {Kafka: "0.8", Nodes: 1},
	} {
		if err := c.Run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	var out bytes.Buffer
	if err := (&Command{Peers: []string{"list"}}).Run(t.Context(), &out); err != nil || !strings.Contains(out.String(), fmt.Sprintf("%-14s %-14s", "epoch-back", "epoch_back")) {
		t.Errorf("%v\n%s", err, out.String())
	}
}
