package kernel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestCountersAreReadByName(t *testing.T) {
	c := Counters{}
	if err := c.parse(strings.NewReader("TcpExt: A ListenOverflows ListenDrops\nTcpExt: 1 22 333\nIpExt: ListenDrops\nIpExt: 4\n")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Counters{"ListenOverflows": 22, "ListenDrops": 333}, c); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Counters{"ListenDrops": 3}, c.Since(Counters{"ListenOverflows": 22, "ListenDrops": 330})); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"TcpExt: A\n", "TcpExt: A B\nTcpExt: 1\n", "TcpExt: ListenDrops\nTcpExt: x\n"} {
		if err := (Counters{}).parse(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestAFullAcceptQueueIsSeen overflows a listener that nobody accepts on.
func TestAFullAcceptQueueIsSeen(t *testing.T) {
	before, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(ln) }()
	if err := unix.Bind(ln, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(ln, 1); err != nil {
		t.Fatal(err)
	}
	to, err := unix.Getsockname(ln)
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
			t.Fatal(err)
		}
	}
	after, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if grown := after.Since(before); grown["ListenOverflows"] == 0 || grown["ListenDrops"] == 0 {
		t.Errorf("grown: %v", grown)
	}
}
