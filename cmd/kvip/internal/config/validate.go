package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/token"

	"github.com/kvip/kvip/backends/policy"
	"github.com/kvip/kvip/healthcheck"
)

// validator holds the rules about values. Each rule names a key's path; a key whose fault has been told already is left
// alone.
type validator struct {
	*decoder
	cfg *Config
}

var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"json", "console"}
	lookups    = []string{"snapshot", "forward"}
	// A name becomes part of metric labels and of file names.
	nameRule = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
	hostRule = regexp.MustCompile(`^[a-zA-Z0-9_]([a-zA-Z0-9_.-]{0,252}[a-zA-Z0-9_.])?$`)
)

func (v *validator) validate() {
	v.choice("log.level", v.cfg.Log.Level, logLevels)
	v.choice("log.format", v.cfg.Log.Format, logFormats)
	v.listen("admin.listen", v.cfg.Admin.Listen)
	if host, _, err := net.SplitHostPort(v.cfg.Admin.Listen); err == nil && !loopback(host) {
		v.warn("admin.listen", "the admin listener has no login, and this address may be reached from other machines", "listen on 127.0.0.1 unless the network in front of it is trusted")
	}
	if v.cfg.StateDir == "" {
		v.error("state_dir", "state_dir is empty", "name a directory that kvip may write, like /var/lib/kvip")
	} else if !filepath.IsAbs(v.cfg.StateDir) {
		v.warn("state_dir", "state_dir is relative: where it is depends on where kvip is started", "write a path from /")
	}
	v.fieldErrors("consul", v.cfg.Consul.Validate())
	v.fieldErrors("register", v.cfg.Register.Validate())
	for i, vip := range v.cfg.VIPs {
		if _, port, err := net.SplitHostPort(vip.Listen); v.cfg.Register.Service != "" && err == nil && port == "0" {
			v.error(fmt.Sprintf("vips[%d].listen", i), "a VIP on a port of the system's choice would be registered anew under another name at every start", "write a port, or leave register out")
		}
	}
	v.between("drain.grace", v.cfg.Drain.Grace, 0, time.Hour)
	v.between("drain.timeout", v.cfg.Drain.Timeout, 100*time.Millisecond, time.Hour)
	v.pools()
	v.vips()
	v.listeners()
	v.ownAddresses()
}

func (v *validator) pools() {
	if len(v.cfg.Pools) == 0 {
		v.error("pools", "no pools", "add one: pools: [{name: orders, discovery: {type: static, brokers: [host:9092]}}]")
	}
	used := map[string]bool{}
	for _, vip := range v.cfg.VIPs {
		used[vip.Pool] = true
	}
	names := map[string]int{}
	for i, p := range v.cfg.Pools {
		path := fmt.Sprintf("pools[%d]", i)
		v.name(path, "pool", p.Name, i, names)
		v.discovery(path, p.Discovery)
		v.health(path+".health", p.Health)
		v.balancer(path+".balancer", p.Balancer)
		v.outliers(path+".outliers", p.Outliers)
		v.between(path+".metadata.max_age", p.Metadata.MaxAge, 50*time.Millisecond, time.Hour)
		v.between(path+".metadata.max_stale", p.Metadata.MaxStale, time.Second, 24*time.Hour)
		if p.Metadata.MaxStale < p.Metadata.MaxAge {
			v.error(path+".metadata.max_stale", fmt.Sprintf("max_stale %s is shorter than max_age %s: every answer would be given up before it is refreshed", p.Metadata.MaxStale, p.Metadata.MaxAge), "make max_stale the longer one, by minutes")
		}
		v.count(path+".max_upstream", p.MaxUpstream, 1, 1024)
		for j, n := range p.DialAllow {
			v.network(fmt.Sprintf("%s.dial_allow[%d]", path, j), n)
		}
		switch {
		case p.Name == "":
		case !used[p.Name] && !p.Standby:
			v.warn(path+".name", fmt.Sprintf("pool %q is used by no VIP", p.Name), "name it in a vip, set standby: true to keep it warm, or remove it")
		case used[p.Name] && p.Standby:
			v.warn(path+".standby", fmt.Sprintf("pool %q is on standby although a VIP uses it", p.Name), "remove standby")
		}
	}
}

func (v *validator) health(path string, h Health) {
	v.between(path+".interval", h.Interval, 50*time.Millisecond, time.Hour)
	v.between(path+".timeout", h.Timeout, 10*time.Millisecond, time.Minute)
	if h.Timeout > h.Interval {
		v.error(path+".timeout", fmt.Sprintf("timeout %s is longer than interval %s: a probe would not have ended when the next is due", h.Timeout, h.Interval), "make timeout at most the interval")
	}
	v.count(path+".rise", h.Rise, 1, 100)
	v.count(path+".fall", h.Fall, 1, 100)
}

func (v *validator) balancer(path string, b Balancer) {
	v.choice(path+".policy", b.Policy, policies())
	if b.Heads != "" {
		v.choice(path+".heads", b.Heads, policies())
	}
	v.between(path+".slow_start", b.SlowStart, 0, time.Hour)
}

func (v *validator) outliers(path string, o Outliers) {
	methods := make([]string, 0, len(healthcheck.Methods))
	for _, m := range healthcheck.Methods {
		methods = append(methods, string(m))
	}
	v.choice(path+".method", o.Method, methods)
	if o.Deviations < 1 || o.Deviations > 10 {
		v.error(path+".deviations", fmt.Sprintf("%g is out of range", o.Deviations), "between 1 and 10; 1.9 is usual")
	}
	v.count(path+".min_samples", o.MinSamples, 2, 10)
	v.between(path+".floor", o.Floor, time.Millisecond, time.Minute)
	v.between(path+".eject", o.Eject, time.Second, 24*time.Hour)
	v.between(path+".max_eject", o.MaxEject, time.Second, 24*time.Hour)
	if o.MaxEject < o.Eject {
		v.error(path+".max_eject", fmt.Sprintf("max_eject %s is shorter than eject %s", o.MaxEject, o.Eject), "make max_eject the longer one")
	}
}

func (v *validator) network(path string, n netip.Prefix) {
	switch {
	case !n.IsValid():
	case n.Addr().Is4In6():
		if n.Bits() >= 96 {
			v.error(path, n.String()+" is an IPv4 network in IPv6 clothes", fmt.Sprintf("write %s", netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96).Masked()))
		} else {
			v.error(path, n.String()+" covers every address", "write the IPv4 network itself, like 10.0.0.0/8")
		}
	case n.Masked() != n:
		v.error(path, n.String()+" has host bits set", fmt.Sprintf("write %s, or %s for that host alone", n.Masked(), netip.PrefixFrom(n.Addr(), n.Addr().BitLen())))
	case n.Bits() == 0:
		v.error(path, n.String()+" lets kvip dial every address that a broker names", "name the brokers' networks")
	}
}

func (v *validator) vips() {
	if len(v.cfg.VIPs) == 0 {
		v.error("vips", "no vips", "add one: vips: [{name: orders, listen: 0.0.0.0:9092, pool: orders}]")
	}
	var poolNames []string
	for _, p := range v.cfg.Pools {
		if p.Name != "" && !slices.Contains(poolNames, p.Name) {
			poolNames = append(poolNames, p.Name)
		}
	}
	names := map[string]int{}
	addresses := map[string]string{}
	for i, vip := range v.cfg.VIPs {
		path := fmt.Sprintf("vips[%d]", i)
		v.name(path, "vip", vip.Name, i, names)
		if vip.Listen == "" {
			v.error(path+".listen", "a vip without listen", "add listen: 0.0.0.0:9092")
		} else {
			v.listen(path+".listen", vip.Listen)
		}
		switch {
		case vip.Pool == "":
			v.error(path+".pool", "a vip without a pool", "add pool: with the name of one under pools")
		case !slices.Contains(poolNames, vip.Pool):
			v.error(path+".pool", fmt.Sprintf("no pool is named %s", quote(vip.Pool)), meant(vip.Pool, poolNames))
		}
		v.choice(path+".lookup", vip.Lookup, lookups)
		for j, address := range vip.Addresses {
			sub := fmt.Sprintf("%s.addresses[%d]", path, j)
			if what := checkHostPort(address, 1); what != "" {
				v.error(sub, what, "write it as clients do, like kafka.example.com:9092")
			} else if before, twice := addresses[canonical(address)]; twice {
				v.error(sub, fmt.Sprintf("%s is %s already", quote(address), before), "an address leads to one VIP: keep one of them")
			} else {
				addresses[canonical(address)] = "an address of vip " + quote(vip.Name)
			}
		}
		v.limits(path+".limits", vip.Limits)
	}
}

func (v *validator) limits(path string, l Limits) {
	v.count(path+".connections", l.Connections, 0, 1<<30)
	v.between(path+".first_byte", l.FirstByte, 100*time.Millisecond, 24*time.Hour)
	v.between(path+".frame", l.Frame, 100*time.Millisecond, 24*time.Hour)
	v.between(path+".idle", l.Idle, time.Second, 7*24*time.Hour)
	v.between(path+".stalled", l.Stalled, time.Second, time.Hour)
	v.between(path+".hold", l.Hold, 10*time.Millisecond, time.Minute)
	v.count(path+".frame_bytes", int(l.FrameBytes), 1<<10, 100<<20)
	v.count(path+".inbound_bytes", int(l.InboundBytes), 1<<10, 1<<30)
	v.count(path+".outbound_bytes", int(l.OutboundBytes), 64<<10, 1<<30)
	v.count(path+".buffered_bytes", int(l.BufferedBytes), 1<<20, 1<<30)
	if l.InboundBytes < l.FrameBytes && !v.places[path+".frame_bytes"].bad {
		v.error(path+".inbound_bytes", fmt.Sprintf("inbound_bytes %d is less than frame_bytes %d: a client that sends such a request ahead would be closed", l.InboundBytes, l.FrameBytes), "make inbound_bytes at least frame_bytes")
	}
	v.count(path+".tags", l.Tags, 1, 1024)
}

// listeners refuses two listeners on one port, also where one of them has every address.
func (v *validator) listeners() {
	type listener struct{ path, what, host, port string }
	all := []listener{}
	add := func(path, what, address string) {
		if host, port, err := net.SplitHostPort(address); err == nil && port != "0" {
			all = append(all, listener{path, what, canonicalHost(host), port})
		}
	}
	add("admin.listen", "the admin listener", v.cfg.Admin.Listen)
	for i, vip := range v.cfg.VIPs {
		add(fmt.Sprintf("vips[%d].listen", i), fmt.Sprintf("vip %s", quote(vip.Name)), vip.Listen)
	}
	for i, l := range all {
		for _, before := range all[:i] {
			if l.port == before.port && (l.host == before.host || wildcard(l.host) || wildcard(before.host)) {
				at := ""
				if tok := v.token(before.path); tok != nil && tok.Position != nil {
					at = fmt.Sprintf(" in line %d", tok.Position.Line)
				}
				v.error(l.path, fmt.Sprintf("%s listens on %s already%s", before.what, net.JoinHostPort(before.host, before.port), at), "give each its own port, or its own address without 0.0.0.0 or [::]")
				break
			}
		}
	}
}

// ownAddresses refuses a static broker that is a VIP itself: kvip would hand clients to itself, round and round.
func (v *validator) ownAddresses() {
	for i, p := range v.cfg.Pools {
		for _, b := range v.staticBrokers(fmt.Sprintf("pools[%d].discovery", i), p.Discovery) {
			for _, vip := range v.cfg.VIPs {
				own := slices.ContainsFunc(vip.Addresses, func(a string) bool { return canonical(a) == canonical(b.address) })
				if own || listensOn(vip.Listen, b.address) {
					v.error(b.path, fmt.Sprintf("%s is the address of vip %s itself", quote(b.address), quote(vip.Name)), "name the broker's own address, the one in its advertised.listeners")
					break
				}
			}
		}
	}
}

// listensOn says whether a listener surely is that address, without asking the system for its interfaces.
func listensOn(listen, address string) bool {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	brokerHost, brokerPort, err := net.SplitHostPort(address)
	if err != nil || port != brokerPort {
		return false
	}
	return canonicalHost(host) == canonicalHost(brokerHost) || wildcard(host) && loopback(brokerHost)
}

func policies() []string { return slices.Sorted(maps.Keys(policy.Policies)) }

func (v *validator) name(path, kind, name string, index int, seen map[string]int) {
	switch before, twice := seen[name]; {
	case name == "":
		v.error(path+".name", fmt.Sprintf("a %s without a name", kind), "add name: with letters, digits, '.', '_' and '-'")
	case !nameRule.MatchString(name):
		v.error(path+".name", quote(name)+" cannot be a name", "use at most 63 letters, digits, '.', '_' and '-', the first a letter or digit")
	case twice:
		at := ""
		if tok := v.token(fmt.Sprintf("%ss[%d].name", kind, before)); tok != nil && tok.Position != nil {
			at = fmt.Sprintf(", first in line %d", tok.Position.Line)
		}
		v.error(path+".name", fmt.Sprintf("two %ss are named %q%s", kind, name, at), "give each its own name")
	default:
		seen[name] = index
	}
}

func (v *validator) choice(path, value string, choices []string) {
	if !slices.Contains(choices, value) {
		key := path[strings.LastIndexByte(path, '.')+1:]
		v.error(path, fmt.Sprintf("unknown %s %s", key, quote(value)), meant(value, choices))
	}
}

// meant suggests one of the choices, the nearest first.
func meant(value string, choices []string) string {
	if near := nearest(value, choices); near != "" {
		return fmt.Sprintf("did you mean %q? (known: %s)", near, strings.Join(choices, ", "))
	}
	return "known: " + strings.Join(choices, ", ")
}

func (v *validator) between(path string, d, low, high time.Duration) {
	if d < low || d > high {
		v.error(path, fmt.Sprintf("%s is out of range", d), fmt.Sprintf("between %s and %s", low, high))
	}
}

func (v *validator) count(path string, n, low, high int) {
	if n < low || n > high {
		v.error(path, fmt.Sprintf("%d is out of range", n), fmt.Sprintf("between %d and %d", low, high))
	}
}

func (v *validator) listen(path, address string) {
	if what := checkHostPort(address, 0); what != "" {
		v.error(path, what, "write address:port, like 0.0.0.0:9092 or 127.0.0.1:9644")
	}
}

// checkHostPort says what is wrong with host:port, "" when nothing is.
func checkHostPort(address string, lowest int) string {
	host, port, err := net.SplitHostPort(address)
	switch {
	case strings.Contains(address, "://"):
		return quote(address) + " has a scheme; host:port is wanted"
	case err != nil && strings.Count(address, ":") > 1 && !strings.Contains(address, "["):
		return quote(address) + " has an IPv6 address without brackets"
	case err != nil:
		return quote(address) + " has no port"
	case host == "":
		return quote(address) + " has no host"
	}
	if n, err := strconv.Atoi(port); err != nil || n < lowest || n > 65535 {
		return fmt.Sprintf("port %s is not a number from %d to 65535", quote(port), lowest)
	}
	if _, err := netip.ParseAddr(host); err != nil {
		if looksLikeIP(host) || !hostRule.MatchString(host) {
			return quote(host) + " is neither an IP address nor a host name"
		}
	}
	return ""
}

// looksLikeIP says that a host has digits and dots only: no name ends in an all-digit label (RFC 3696).
func looksLikeIP(host string) bool {
	return strings.Trim(host, "0123456789.") == ""
}

// canonical writes host:port in the one form in which two spellings of an address are equal.
func canonical(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return net.JoinHostPort(canonicalHost(host), port)
}

func canonicalHost(host string) string {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" {
		return "127.0.0.1"
	}
	return host
}

func wildcard(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsUnspecified()
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(canonicalHost(host))
	return err == nil && a.IsLoopback()
}

// error and warn report a fault at a key, or where that key would stand.
func (v *validator) error(path, what, fix string) { v.report(path, what, fix, false) }
func (v *validator) warn(path, what, fix string)  { v.report(path, what, fix, true) }

func (v *validator) report(path, what, fix string, warning bool) {
	for p := path; ; p = parent(p) {
		if v.places[p].bad {
			return
		}
		if p == "" {
			break
		}
	}
	f := v.at(v.token(path), what, fix)
	f.Warning = warning
	v.faults = append(v.faults, f)
	if !warning {
		p := v.places[path]
		p.bad = true
		v.places[path] = p
	}
}

// token returns where path stands, or the nearest thing around it that does.
func (v *validator) token(path string) *token.Token {
	for ; path != ""; path = parent(path) {
		if p, ok := v.places[path]; ok && p.value != nil {
			return p.value
		}
	}
	return nil
}

// parent is the path of what holds path: "a[0]" for "a[0].b", "a" for "a[0]", "" for "a".
func parent(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }
