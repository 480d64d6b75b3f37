package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/loadtest/cputime"
	"github.com/kvip/kvip/loadtest/kafka"
)

const (
	fleetProcesses = 6 // of kvip, and of clients: a process may hold 20,000 descriptors
	fleetClients   = 100_000
	fewClients     = 1_000
	fleetRate      = 600 // lookups per second and process
)

// bigFleet has 100,000 clients bootstrap and stay, over several kvip processes that share a port, beside a thousand clients
// of another such set.
func bigFleet(ctx context.Context, r *bigRun) error {
	s, err := r.stub(ctx, "stub-600", 3, 100, 6)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	large, err := r.fleet(ctx, "large", s, self, fleetClients)
	if err != nil {
		return err
	}
	few, err := r.fleet(ctx, "few", s, self, fewClients)
	if err != nil {
		return err
	}
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	before := make([]float64, fleetProcesses)
	for i, g := range large.kvips {
		if before[i], err = resident(g.pid); err != nil {
			return err
		}
	}
	kernelBefore := socketMemory()
	began := time.Now()
	failures, err := large.tell("open\n")
	if err != nil {
		return err
	}
	r.say(fmt.Sprintf("%d clients bootstrap and stay, over %d processes: all within", fleetClients, fleetProcesses), "s", 15, time.Since(began).Seconds())
	r.say("... failures", "", 0.5, failures)
	if _, err := few.tell("open\n"); err != nil {
		return err
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	var each []float64
	conns := 0.0
	for i, g := range large.kvips {
		rss, err := resident(g.pid)
		if err != nil {
			return err
		}
		n, err := g.connections(ctx)
		if err != nil {
			return err
		}
		conns += n
		each = append(each, (rss-before[i])/n)
	}
	r.say("... of them connected", "", 0, conns)
	r.say("... kvip's memory for each idle connection, by process", "bytes", 1024, each...)
	r.say("... the kernel's socket memory, both ends and both sets, in use for data", "MiB", 0, socketMemory()-kernelBefore)

	var ratios, costs []float64
	for round := range r.o.Rounds + 1 {
		var cost [2]float64
		for i, f := range []*fleet{large, few} {
			if cost[i], err = f.lookups(r.o.Cell); err != nil {
				return err
			}
		}
		if round > 0 {
			costs, ratios = append(costs, cost[0]), append(ratios, cost[0]/cost[1])
		}
	}
	r.say(fmt.Sprintf("one topic with %d clients connected", fleetClients), "us", 0, costs...)
	r.say(fmt.Sprintf("one topic, %d clients / %d clients", fleetClients, fewClients), "", 1.3, ratios...)
	return nil
}

// fleet is some kvips that share a port, and processes of clients.
type fleet struct {
	kvips   []*gateway
	members []*member
}

type member struct {
	in  io.Writer
	out *bufio.Reader
}

func (r *bigRun) fleet(ctx context.Context, name string, s *stubbed, self string, clients int) (*fleet, error) {
	listen, err := r.stand.port()
	if err != nil {
		return nil, err
	}
	f := &fleet{}
	for i := range fleetProcesses {
		g, err := r.gateway(ctx, fmt.Sprintf("kvip-%s-%d", name, i), s, listen, ", share_port: true")
		if err != nil {
			return nil, err
		}
		f.kvips = append(f.kvips, g)
	}
	for i := range fleetProcesses {
		n := clients / fleetProcesses
		if i < clients%fleetProcesses {
			n++
		}
		cmd := exec.CommandContext(ctx, self, "--fleet-target", listen, "--fleet-clients", fmt.Sprint(n), "--fleet-part", fmt.Sprint(i))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		r.stand.undo = append(r.stand.undo, func() error { _ = in.Close(); return cmd.Wait() })
		f.members = append(f.members, &member{in, bufio.NewReader(out)})
	}
	return f, nil
}

// tell gives all members a command and returns the sum of what they answer.
func (f *fleet) tell(command string) (sum float64, err error) {
	for _, m := range f.members {
		if _, err := io.WriteString(m.in, command); err != nil {
			return 0, err
		}
	}
	for _, m := range f.members {
		line, err := m.out.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("a process of clients is gone: %w", err)
		}
		var n float64
		if _, err := fmt.Sscan(line, &n); err != nil {
			return 0, fmt.Errorf("a process of clients says %q", line)
		}
		sum += n
	}
	return sum, nil
}

// lookups has the clients look up in turn and returns the kvips' CPU per answer in us.
func (f *fleet) lookups(d time.Duration) (float64, error) {
	clock := func() (sum time.Duration, err error) {
		for _, g := range f.kvips {
			at, err := cputime.Of(g.pid)
			if err != nil {
				return 0, err
			}
			sum += at
		}
		return sum, nil
	}
	from, err := clock()
	if err != nil {
		return 0, err
	}
	n, err := f.tell(fmt.Sprintf("look %d %d\n", fleetRate, d.Milliseconds()))
	if err != nil {
		return 0, err
	}
	to, err := clock()
	if n == 0 {
		return 0, errors.New("no lookup was answered")
	}
	return float64((to - from).Microseconds()) / n, err
}

// connections is how many kvip has open.
func (g *gateway) connections(ctx context.Context) (float64, error) {
	st, err := g.status(ctx)
	if err != nil {
		return 0, err
	}
	return st.VIPs[0].Connections, nil
}

// fleetMember is a process of clients: plain blocking sockets, which cost the least. It is told on its input what to do:
// "open" has every client bootstrap and stay, and answers the number of failures; "look RATE MILLIS" has one after the
// other look up a topic, and answers how many were served.
type fleetMember struct {
	Target  string
	Clients int
	Part    int
	Read    int  // instead: how many answers for all topics to read, without a look at them
	One     bool // with Read: answers for one topic
}

const fleetThreads = 8

func (m *fleetMember) run(in io.Reader, out io.Writer) error {
	if m.Read > 0 {
		return m.read(out)
	}
	to, err := netip.ParseAddrPort(m.Target)
	if err != nil {
		return err
	}
	fds := make([]int, m.Clients)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var rate, millis int
		switch n, _ := fmt.Sscanf(lines.Text(), "look %d %d", &rate, &millis); {
		case n == 2:
			served, err := m.look(fds, rate, time.Duration(millis)*time.Millisecond)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, served)
		case lines.Text() == "open":
			fmt.Fprintln(out, m.open(fds, to))
		default:
			return fmt.Errorf("%q is not a command", lines.Text())
		}
	}
	return nil
}

func (m *fleetMember) open(fds []int, to netip.AddrPort) (failures int64) {
	var next, failed atomic.Int64
	var wg sync.WaitGroup
	ask := append(kafka.APIVersionsRequest(4, "fleet", kafka.Software{Name: "apache-kafka-java", Version: "4.4.0"}),
		kafka.MetadataRequest(12, "fleet", bigLookups[1])...)
	for range fleetThreads {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(fds); i = int(next.Add(1)) - 1 {
				fd, err := m.bootstrap(i, to, ask)
				if err != nil {
					if failed.Add(1) == 1 {
						fmt.Fprintln(os.Stderr, "client:", err)
					}
					fd = -1
				}
				fds[i] = fd
			}
		})
	}
	wg.Wait()
	return failed.Load()
}

// perSource is how many clients come from one address, of which an ephemeral port range allows 28,000.
const perSource = 4000

// connect opens one connection from wherever the kernel chooses.
func (m *fleetMember) connect(addr string) (int, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return -1, fmt.Errorf("connect: %w", err)
	}
	return fd, nil
}

func (m *fleetMember) bootstrap(i int, to netip.AddrPort, ask []byte) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	ok := false
	defer func() {
		if !ok {
			_ = unix.Close(fd)
		}
	}()
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 15})
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 100, byte(m.Part + 1), byte(1 + i/perSource)}}); err != nil {
		return -1, fmt.Errorf("bind: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		return -1, fmt.Errorf("connect: %w", err)
	}
	if _, err := unix.Write(fd, ask); err != nil {
		return -1, fmt.Errorf("write: %w", err)
	}
	for range 2 {
		if err := readAnswer(fd); err != nil {
			return -1, err
		}
	}
	ok = true
	return fd, nil
}

func readAnswer(fd int) error {
	var buf [8 << 10]byte
	if err := readFull(fd, buf[:4]); err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint32(buf[:]))
	if n < 4 || n > len(buf) {
		return fmt.Errorf("an answer of %d bytes", n)
	}
	return readFull(fd, buf[:n])
}

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		b = b[max(n, 0):]
	}
	return nil
}

func (m *fleetMember) look(fds []int, rate int, d time.Duration) (served int, err error) {
	ask := kafka.MetadataRequest(12, "fleet", bigLookups[1])
	every := time.Second / time.Duration(rate)
	begin := time.Now()
	// Spread over all clients: each lookup is another one's.
	for i := 0; time.Since(begin) < d; i++ {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * every)))
		fd := fds[i*7919%len(fds)]
		if fd < 0 {
			continue
		}
		if _, err := unix.Write(fd, ask); err != nil {
			return served, err
		}
		if err := readAnswer(fd); err != nil {
			return served, err
		}
		served++
	}
	return served, nil
}
