//go:build golden

package answer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/loadtest/lab"
	"github.com/kvip/kvip/protocol/answer/answertest"
)

// TestMakeGoldens asks a real cluster everything, once whole and once with a broker killed, and writes the files that
// TestAnswersAreABrokers compares with: `make golden`.
func TestMakeGoldens(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	k, err := lab.StartKafka(ctx, lab.KafkaConfig{Racks: []string{"a", "b"}, AdvertisedHosts: []string{"127.0.0.11", "localhost", "::1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	cluster := answertest.Cluster{Topics: [3]string{"orders", "payments", "audit.log"}}
	for i, rf := range []int{3, 2, 1} {
		if err := k.CreateTopic(ctx, cluster.Topics[i], 3, rf); err != nil {
			t.Fatal(err)
		}
	}
	q := kmsg.NewPtrMetadataRequest()
	q.Version = 13
	q.Topics = []kmsg.MetadataRequestTopic{{Topic: &cluster.Topics[0]}}
	resp, err := lab.Exchange(ctx, k.Node(0).Addr(), q)
	if err != nil {
		t.Fatal(err)
	}
	cluster.ID = resp.(*kmsg.MetadataResponse).Topics[0].TopicID
	record(t, "kafka-4.3.1.golden", k.Node(0).Addr(), cluster)
	if err := k.Node(2).Kill(); err != nil {
		t.Fatal(err)
	}
	if err := k.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	record(t, "kafka-4.3.1-one-down.golden", k.Node(0).Addr(), cluster)
}

func record(t *testing.T, name, addr string, cluster answertest.Cluster) {
	var file bytes.Buffer
	fmt.Fprintf(&file, "# %s: what a real broker answered; made by `make golden`. Each line: case, request, response.\n", name)
	for _, c := range cluster.Cases(func(key int16) int16 { return map[int16]int16{3: 13, 18: 5, 60: 2, 10: -1}[key] }) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		req := c.Frame(7)
		_, _ = conn.Write(req)
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			t.Fatal(c, err)
		}
		body := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, body); err != nil {
			t.Fatal(c, err)
		}
		_ = conn.Close()
		fmt.Fprintf(&file, "%s\t%x\t%x%x\n", c, req, size, body)
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("testdata", name), file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
