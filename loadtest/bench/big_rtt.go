package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/scenario"
)

// roundTrip is how far away the one reader is.
const roundTrip = 50 * time.Millisecond

// bigRTT is the throughput of one reader at a distance, for the same answers from kvip, from raw writes and from the floor.
// It needs root and /dev/net/tun: the way between this namespace and another goes through this process, which keeps each
// packet for half the round trip. (Where the kernel has netem it would do, too.)
func bigRTT(ctx context.Context, r *bigRun) error {
	// kvip and the floor are reached from the other namespace at this end of the way.
	port, err := r.stand.port()
	if err != nil {
		return err
	}
	_, number, _ := strings.Cut(port, ":")
	large, kvip, err := r.large(ctx, "0.0.0.0:"+number)
	if err != nil {
		return err
	}
	if port, err = r.stand.port(); err != nil {
		return err
	}
	_, number, _ = strings.Cut(port, ":")
	bare, err := r.floorOn(ctx, large.addr, "0.0.0.0:"+number)
	if err != nil {
		return err
	}
	stop, err := distance(roundTrip / 2)
	if err != nil {
		return fmt.Errorf("a way of %s: %w (needs root, /dev/net/tun and iproute2)", roundTrip, err)
	}
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	rates := map[string][]float64{}
	for range r.o.Rounds {
		for _, t := range []target{kvip.target, bare} {
			_, number, _ := strings.Cut(t.addr, ":")
			out, err := exec.CommandContext(ctx, "ip", "netns", "exec", netns, self, "--fleet-target", nearEnd+":"+number, "--fleet-read", "4").CombinedOutput()
			if err != nil {
				return fmt.Errorf("reader of %s: %w: %s", t.name, err, out)
			}
			var rate float64
			if _, err := fmt.Sscan(string(out), &rate); err != nil {
				return fmt.Errorf("reader of %s says %q", t.name, out)
			}
			rates[t.name] = append(rates[t.name], rate)
		}
	}
	r.say("one reader at 50 ms: kvip", "MB/s", 0, rates[kvip.name]...)
	r.say("one reader at 50 ms: floor", "MB/s", 0, rates[bare.name]...)
	r.say("one reader at 50 ms: kvip / floor", "", 0, over(rates[kvip.name], rates[bare.name])...)
	return nil
}

const (
	netns           = "kvip-bench"
	nearEnd, farEnd = "10.213.7.1", "10.213.7.2"
)

// distance connects this network namespace with a new one, over a way that takes oneWay in each direction.
func distance(oneWay time.Duration) (stop func(), err error) {
	ip := func(args ...string) {
		if err != nil {
			return
		}
		if out, e := exec.Command("ip", args...).CombinedOutput(); e != nil {
			err = fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), e, out)
		}
	}
	ip("netns", "add", netns)
	if err != nil {
		return nil, err
	}
	remove := func() { _ = exec.Command("ip", "netns", "del", netns).Run() }
	near, err := tun("kvipnear")
	if err != nil {
		remove()
		return nil, err
	}
	far, err := tun("kvipfar")
	if err != nil {
		_ = near.Close()
		remove()
		return nil, err
	}
	stop = func() { _ = near.Close(); _ = far.Close(); remove() }
	ip("link", "set", "kvipfar", "netns", netns)
	ip("addr", "add", nearEnd, "peer", farEnd, "dev", "kvipnear")
	ip("link", "set", "kvipnear", "up", "txqueuelen", "10000")
	ip("-n", netns, "addr", "add", farEnd, "peer", nearEnd, "dev", "kvipfar")
	ip("-n", netns, "link", "set", "kvipfar", "up", "txqueuelen", "10000")
	if err != nil {
		stop()
		return nil, err
	}
	go carry(far, near, oneWay)
	go carry(near, far, oneWay)
	return stop, nil
}

// tun opens a network device whose packets are read and written here.
func tun(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// carry moves packets, each for as long as the way takes, until one of the ends is closed.
func carry(to, from *os.File, way time.Duration) {
	type packet struct {
		due  time.Time
		data []byte
	}
	queue := make(chan packet, 1<<16)
	go func() {
		defer close(queue)
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			select {
			case queue <- packet{time.Now().Add(way), append([]byte(nil), buf[:n]...)}:
			default: // as a full queue of a router does
			}
		}
	}()
	for p := range queue {
		time.Sleep(time.Until(p.due))
		_, _ = to.Write(p.data)
	}
}

// read takes n answers for all topics, one after the other, and says how fast: MB/s from the second on, when the window
// has opened.
func (m *fleetMember) read(out io.Writer) error {
	fd, err := m.connect(m.Target)
	if err != nil {
		return err
	}
	cfg := scenario.Defaults() // the floor knows requests by their length
	ask := kafka.MetadataRequest(cfg.MetadataVersion, cfg.ClientID, bigLookups[0])
	if m.One {
		ask = kafka.MetadataRequest(cfg.MetadataVersion, cfg.ClientID, bigLookups[1])
	}
	buf := make([]byte, 1<<20)
	var begin time.Time
	total := 0
	for i := range m.Read + 1 {
		if i == 1 {
			begin = time.Now()
		}
		if _, err := unix.Write(fd, ask); err != nil {
			return err
		}
		if err := readFull(fd, buf[:4]); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(buf))
		for left := size; left > 0; {
			n := min(left, len(buf))
			if err := readFull(fd, buf[:n]); err != nil {
				return err
			}
			left -= n
		}
		if i > 0 {
			total += size
		}
	}
	if total == 0 {
		return errors.New("nothing was read")
	}
	fmt.Fprintln(out, float64(total)/1e6/time.Since(begin).Seconds())
	return nil
}
