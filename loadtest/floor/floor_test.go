package floor

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startFloor runs a floor on a free port and returns its address and a function that ends it.
func startFloor(t *testing.T, answers []Answer) (string, func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	s, err := New(Config{Listen: addr, Loops: 2, KeepAlive: time.Minute, Answers: answers})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Booted():
	case err := <-ended:
		t.Fatal(err)
	}
	stop := func() error { cancel(); return <-ended }
	return addr, stop
}

func TestFloorAnswersWithReadyBytesAndTheRequestsCorrelationID(t *testing.T) {
	addr, stop := startFloor(t, []Answer{
		{Key: 3, Version: 12, RequestSize: 10, Response: []byte("....one")},
		{Key: 3, Version: 12, Response: []byte("....all topics")},
	})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	// Two requests in one segment, then one split inside its head and inside its body.
	for _, part := range []string{
		"\x00\x00\x00\x0a\x00\x03\x00\x0cAAAA..\x00\x00\x00\x0b\x00\x03\x00\x0cBBBB...",
		"\x00\x00\x00\x0a\x00", "\x03\x00\x0cCCCC.", ".",
	} {
		if _, err := c.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // parts must arrive apart
	}
	want := []byte("\x00\x00\x00\x07AAAAone\x00\x00\x00\x0eBBBBall topics\x00\x00\x00\x07CCCCone")
	got := make([]byte, len(want))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	for name, request := range map[string]string{
		"no answer for the key": "\x00\x00\x00\x08\x00\x12\x00\x0cAAAA", "length too short": "\x00\x00\x00\x07\x00\x03\x00\x0cAAAA", "length too long": "\x7f\xff\xff\xff\x00\x03\x00\x0cAAAA",
	} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(request))
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
			t.Errorf("%s: read %d, %v; want the connection closed", name, n, err)
		}
		_ = c.Close()
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestUnusableAnswersAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		answers []Answer
		want    string
	}{
		"none":  {nil, "at least one answer"},
		"short": {[]Answer{{Key: 3, Version: 1, Response: []byte("abc")}}, "answer for key 3 version 1: response has 3 bytes"},
	} {
		if _, err := New(Config{Listen: "127.0.0.1:0", Loops: 1, Answers: c.answers}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "answers.json")
	raw, _ := json.Marshal([]Answer{{Key: 18, Version: 4, Response: []byte("....")}})
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadAnswers(path); err != nil || len(got) != 1 || got[0].Key != 18 {
		t.Errorf("read back %v, %v", got, err)
	}
}
