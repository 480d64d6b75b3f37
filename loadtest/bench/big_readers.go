package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/floor"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/scenario"
	"github.com/kvip/kvip/loadtest/schedule"
)

const (
	sleepers      = 5000
	sleeperBuffer = 4 << 10 // SO_RCVBUF: what they do not take stays with the server
)

// bigReaders has thousands of clients ask for megabytes and not read, while others go on.
func bigReaders(ctx context.Context, r *bigRun) error {
	_, kvip, err := r.large(ctx, "")
	if err != nil {
		return err
	}
	request := kafka.MetadataRequest(12, "bench", kafka.Lookup{All: true})
	if _, err := floor.Ask(ctx, kvip.addr, request); err != nil { // encoded from here on
		return err
	}
	cfg := r.load(kvip.target, false, 32)
	if cfg.Rate, err = schedule.Parse("500", 3*time.Second); err != nil {
		return err
	}
	cfg.Duration = 3 * time.Second
	measure := func() (cells []cell, err error) {
		for range r.o.Rounds {
			c, err := loadCell(ctx, "others", kvip.target, cfg)
			if err != nil {
				return nil, err
			}
			cells = append(cells, c)
		}
		return cells, nil
	}
	before, err := measure()
	if err != nil {
		return err
	}
	if err := r.burst(ctx, kvip, request); err != nil {
		return err
	}
	rssBefore, err := resident(kvip.pid)
	if err != nil {
		return err
	}
	kernelBefore := socketMemory()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range sleepers {
		c, err := dialSmall(ctx, kvip.addr)
		if err != nil {
			return fmt.Errorf("reader %d: %w", len(conns), err)
		}
		conns = append(conns, c)
		if _, err := c.Write(request); err != nil {
			return err
		}
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	rss, err := resident(kvip.pid)
	if err != nil {
		return err
	}
	r.say(fmt.Sprintf("%d clients that do not read 4.5 MB: resident memory grows by", sleepers), "MiB", 64, (rss-rssBefore)/(1<<20))
	r.say("... the kernel's socket memory (both ends) grows by", "MiB", 0, socketMemory()-kernelBefore)
	during, err := measure()
	if err != nil {
		return err
	}
	if rss, err = resident(kvip.pid); err != nil {
		return err
	}
	r.say("... resident memory has grown after the others' load by", "MiB", 64, (rss-rssBefore)/(1<<20))
	p99 := func(c cell) float64 { return c.P99Micros / 1e3 }
	r.say("others at 500/s before: p99", "ms", 0, pluck(before, p99)...)
	r.say("others at 500/s meanwhile: p99", "ms", 0, pluck(during, p99)...)
	r.say("others' p99, meanwhile / before (medians)", "", 1.5, spreadOf(pluck(during, p99)).Median/spreadOf(pluck(before, p99)).Median)

	// One resumes, if it is still within the time that a stalled reader has.
	want, err := floor.Ask(ctx, kvip.addr, request)
	if err != nil {
		return err
	}
	last := conns[len(conns)-1]
	_ = last.SetDeadline(time.Now().Add(time.Minute))
	began := time.Now()
	var head [4]byte
	if _, err := io.ReadFull(last, head[:]); err != nil {
		return fmt.Errorf("the reader that resumes: %w", err)
	}
	got := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(last, got); err != nil {
		return fmt.Errorf("the reader that resumes: %w", err)
	}
	if len(got) != len(want) || !sameTopics(got, want) {
		return fmt.Errorf("the reader that resumes got %d bytes, not the %d of others", len(got), len(want))
	}
	r.say(fmt.Sprintf("one resumes and has its %d bytes, whole and in order, after", len(got)), "s", 0, time.Since(began).Seconds())
	return nil
}

const (
	burstClients = 500
	burstLoad    = time.Second // of the others; the burst comes in its first half
	burstAfter   = 300 * time.Millisecond
)

// burst has some hundreds of clients ask for megabytes at once and not read, while others go on: the kernel takes the first part
// of each answer, and that is what others could wait for. Their socket buffers are either small or as the kernel has them.
func (r *bigRun) burst(ctx context.Context, kvip *gateway, request []byte) error {
	cfg := r.load(kvip.target, false, 32)
	var err error
	if cfg.Rate, err = schedule.Parse("500", burstLoad); err != nil {
		return err
	}
	cfg.Duration = burstLoad
	for _, buffers := range []struct {
		name string
		dial func(context.Context, string) (net.Conn, error)
	}{
		{"small", dialSmall},
		{"usual", func(ctx context.Context, addr string) (net.Conn, error) {
			d := net.Dialer{Timeout: 10 * time.Second}
			return d.DialContext(ctx, "tcp", addr)
		}},
	} {
		var p99s, longest, memory []float64
		for range r.o.Rounds {
			c, mem, err := r.oneBurst(ctx, kvip, cfg, request, buffers.dial)
			if err != nil {
				return err
			}
			p99s, longest, memory = append(p99s, c.P99Micros/1e3), append(longest, c.MaxMicros/1e3), append(memory, mem*1024/burstClients)
		}
		r.say(fmt.Sprintf("%d clients at once ask for 4.5 MB and do not read, %s buffers: others' p99 in that second", burstClients, buffers.name), "ms", 0, p99s...)
		r.say("... the longest", "ms", 0, longest...)
		r.say("... the kernel's socket memory for each, both ends", "KiB", 0, memory...)
	}
	return nil
}

// oneBurst returns how the others fared, and by how many MiB the kernel's socket memory has grown.
func (r *bigRun) oneBurst(ctx context.Context, kvip *gateway, others scenario.Config, request []byte,
	dial func(context.Context, string) (net.Conn, error),
) (c cell, memory float64, err error) {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
		err = errors.Join(err, pause(ctx, 300*time.Millisecond))
	}()
	for range burstClients {
		c, err := dial(ctx, kvip.addr)
		if err != nil {
			return cell{}, 0, err
		}
		conns = append(conns, c)
	}
	before := socketMemory()
	asked := make(chan error, 1)
	go func() {
		err := pause(ctx, others.Warmup+burstAfter)
		for _, c := range conns {
			if err == nil {
				_, err = c.Write(request)
			}
		}
		asked <- err
	}()
	c, err = loadCell(ctx, "others", kvip.target, others)
	memory = socketMemory() - before
	return c, memory, errors.Join(err, <-asked)
}

// sameTopics compares answers from the topics on: what comes before, brokers and controller, is in another order in each.
func sameTopics(a, b []byte) bool {
	const head = 4 << 10
	return len(a) > head && bytes.Equal(a[head:], b[head:])
}

func dialSmall(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		if cerr := rc.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, sleeperBuffer)
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	return d.DialContext(ctx, "tcp", addr)
}

// socketMemory is what /proc/net/sockstat says of TCP's memory, in MiB.
func socketMemory() float64 {
	b, _ := os.ReadFile("/proc/net/sockstat")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "TCP:"); ok {
			fields := strings.Fields(rest)
			for i := 0; i+1 < len(fields); i += 2 {
				if fields[i] == "mem" {
					var pages int
					_, _ = fmt.Sscan(fields[i+1], &pages)
					return float64(pages*os.Getpagesize()) / (1 << 20)
				}
			}
		}
	}
	return 0
}
