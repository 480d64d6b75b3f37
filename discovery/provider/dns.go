package provider

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/kvip/kvip/discovery"
)

const (
	defaultPort = 9092
	dnsMax      = 10_000
	// dnsLeastTTL is how long an answer is good whose TTL is less.
	dnsLeastTTL = time.Second
)

// DNSConfig is `discovery: {type: dns, name: NAME}`: one broker for each address of a name, or each target of a service.
// The system's resolver (or Server) is asked again when the first record's TTL is over, after a second at the soonest, and
// every Interval whatever the TTL, for resolvers keep what is still good. A failed read, and one that finds nothing, change
// nothing.
type DNSConfig struct {
	Type string `yaml:"type"`
	// Name is a host name, or a service's: _kafka._tcp.example.com.
	Name string `yaml:"name"`
	// Port is that of brokers found by address; SRV records have their own.
	Port int `yaml:"port"`
	// Record is a, aaaa or srv; empty: srv for a name that begins with _, both kinds of address for others. The weight of
	// SRV records counts, and of their priorities only the lowest number.
	Record string `yaml:"record"`
	// Server is the host:port to ask instead of the system's.
	Server string `yaml:"server"`
	// Interval is how often the name is asked for at the least.
	Interval time.Duration `yaml:"interval"`
}

// Validate implements Config.
func (c *DNSConfig) Validate() error {
	var errs []error
	if _, err := cleanHost(c.Name); err != nil || net.ParseIP(c.Name) != nil {
		errs = append(errs, &FieldError{Field: "name", Problem: fmt.Sprintf("%q is no name to ask for", c.Name), Fix: "write a host name, or a service's like _kafka._tcp.example.com"})
	}
	if c.Port < 1 || c.Port > 65535 {
		errs = append(errs, &FieldError{Field: "port", Problem: fmt.Sprintf("%d is no port", c.Port), Fix: "write the brokers' port, 1 to 65535"})
	}
	if !slices.Contains([]string{"", "a", "aaaa", "srv"}, c.Record) {
		errs = append(errs, &FieldError{Field: "record", Problem: fmt.Sprintf("%q is no kind of record", c.Record), Fix: "write a, aaaa or srv, or leave it out"})
	}
	if _, _, err := splitAddr(c.Server); c.Server != "" && err != nil {
		errs = append(errs, &FieldError{Field: "server", Problem: err.Error(), Fix: "write host:port, e.g. 127.0.0.1:8600 for Consul"})
	}
	return errors.Join(append(errs, checkInterval(c.Interval))...)
}

// Build implements Config.
func (c *DNSConfig) Build(deps Deps) (discovery.Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	d := &dns{DNSConfig: *c, Deps: deps.withDefaults("dns")}
	d.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, cmp.Or(c.Server, address))
		if err != nil {
			return nil, err
		}
		// Once connected the resolver knows deadlines only.
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		if udp, ok := conn.(*net.UDPConn); ok {
			return &overheardUDP{UDPConn: udp, heard: d.heard}, nil
		}
		return &overheardTCP{Conn: conn, heard: d.heard}, nil
	}}
	read := d.addresses
	if c.Record == "srv" || c.Record == "" && strings.HasPrefix(c.Name, "_") {
		read = d.services
	}
	return &poller{again: newAgain(), Deps: d.Deps, interval: c.Interval, due: d.due, read: func(ctx context.Context) (discovery.Update, error) {
		d.mu.Lock()
		d.ttl = c.Interval
		d.mu.Unlock()
		return read(ctx)
	}}, nil
}

type dns struct {
	DNSConfig
	Deps
	resolver *net.Resolver

	mu  sync.Mutex
	ttl time.Duration // the least in the answers of the last read, the interval if that is less
}

// due is how long the last answer is good.
func (d *dns) due() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return min(max(d.ttl, dnsLeastTTL), d.Interval)
}

// heard takes note of the TTLs of a message, which the resolver keeps to itself.
func (d *dns) heard(msg []byte) {
	var p dnsmessage.Parser
	if _, err := p.Start(msg); err != nil || p.SkipAllQuestions() != nil {
		return
	}
	for {
		h, err := p.AnswerHeader()
		if err != nil || p.SkipAnswer() != nil {
			return
		}
		d.mu.Lock()
		d.ttl = min(d.ttl, time.Duration(h.TTL)*time.Second)
		d.mu.Unlock()
	}
}

// overheardUDP and overheardTCP are connections of the resolver that tell what answers come.
type (
	overheardUDP struct {
		*net.UDPConn // it is as one that the resolver tells a datagram's from a stream's
		heard        func(msg []byte)
	}
	overheardTCP struct {
		net.Conn
		heard func(msg []byte)
		// came is what is not a whole message yet, with its length in front: 64 KiB at most.
		came []byte
	}
)

// Read implements net.Conn.
func (o *overheardUDP) Read(b []byte) (int, error) {
	n, err := o.UDPConn.Read(b)
	if err == nil {
		o.heard(b[:n])
	}
	return n, err
}

// Read implements net.Conn.
func (o *overheardTCP) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	o.came = append(o.came, b[:max(n, 0)]...)
	if len(o.came) > 2 {
		if end := 2 + int(binary.BigEndian.Uint16(o.came)); len(o.came) >= end {
			o.heard(o.came[2:end])
			o.came = o.came[end:]
		}
	}
	return n, err
}

// addresses asks for A and AAAA records.
func (d *dns) addresses(ctx context.Context) (discovery.Update, error) {
	network := map[string]string{"": "ip", "a": "ip4", "aaaa": "ip6"}[d.Record]
	ips, err := d.resolver.LookupNetIP(ctx, network, d.DNSConfig.Name)
	if err != nil {
		return discovery.Update{}, err
	}
	var u discovery.Update
	for _, ip := range ips {
		host, err := cleanHost(ip.String())
		d.take(&u, discovery.Instance{Host: cmp.Or(host, ip.String()), Port: d.Port, Weight: 1}, err)
	}
	return d.whole(u)
}

// services asks for SRV records (RFC 2782).
func (d *dns) services(ctx context.Context) (discovery.Update, error) {
	_, records, err := d.resolver.LookupSRV(ctx, "", "", d.DNSConfig.Name)
	if err != nil {
		return discovery.Update{}, err
	}
	var u discovery.Update
	lowest := uint16(0xffff)
	for _, r := range records {
		lowest = min(lowest, r.Priority)
	}
	for _, r := range records {
		in := discovery.Instance{Host: strings.TrimSuffix(r.Target, "."), Port: int(r.Port), Weight: max(int(r.Weight), 1)}
		host, err := cleanHost(in.Host)
		if in.Host = cmp.Or(host, in.Host); r.Priority > lowest {
			u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.Addr(), Addr: in.Addr(), Reason: "priority"})
			continue
		}
		d.take(&u, in, err)
	}
	return d.whole(u)
}

// take adds one record to what was found.
func (d *dns) take(u *discovery.Update, in discovery.Instance, err error) {
	in.ID, in.NodeID, in.Source = in.Addr(), -1, d.Deps.Name
	switch {
	case err != nil:
		u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.ID, Addr: in.ID, Reason: "bad_address"})
	case in.Port == 0:
		u.Skipped = append(u.Skipped, discovery.Skipped{ID: in.ID, Addr: in.ID, Reason: "no_port"})
	default:
		u.Instances = append(u.Instances, in)
	}
}

// whole sorts what was found, for resolvers rotate it, and makes nothing an error.
func (d *dns) whole(u discovery.Update) (discovery.Update, error) {
	switch n := len(u.Instances); {
	case n == 0:
		return u, fmt.Errorf("%s has no usable record", d.DNSConfig.Name)
	case n > dnsMax:
		return u, fmt.Errorf("%s has %d records, above the limit of %d", d.DNSConfig.Name, n, dnsMax)
	}
	slices.SortStableFunc(u.Instances, func(a, b discovery.Instance) int { return cmp.Compare(a.ID, b.ID) })
	unique(&u)
	return u, nil
}
