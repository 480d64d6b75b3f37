package upstream

import (
	"context"
	"errors"
	"net"
	"testing"
)

// The owner is told of each connect that the broker had its time for, and sees a broker's load.
func TestConnectsAreTold(t *testing.T) {
	var told []error
	refuse := errors.New("refused")
	p := New(Options{
		Dial:      func(context.Context, string) (net.Conn, error) { return nil, refuse },
		Connected: func(_ string, err error) { told = append(told, err) },
	})
	defer p.Close()
	p.Keep([]string{"b"})
	load := p.Load("b")
	frame := make([]byte, 16)
	if _, err := p.Do(t.Context(), "b", frame, false); !errors.Is(err, refuse) {
		t.Fatal(err)
	}
	if len(told) != 1 || !errors.Is(told[0], refuse) {
		t.Errorf("told %v", told)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = p.Do(gone, "b", frame, false)
	if len(told) != 1 {
		t.Error("a client that has gone counts against the broker")
	}
	if n := load.Load(); n != 0 {
		t.Errorf("the load is %d with nothing in flight", n)
	}
	p.Keep(nil)
	if p.Load("b") != nil {
		t.Error("a broker that is not kept has a load")
	}
}
