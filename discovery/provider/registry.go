// Package provider holds the registries that kvip can watch for brokers, one file each. A new one is a file with its
// config struct, one line in Registry and one row in the conformance suite.
package provider

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvip/kvip/discovery"
)

// Config is the `discovery:` section of one provider type, decoded strictly by yaml tags. Its struct has the field
// `type` too, so that the whole mapping can be decoded into it.
type Config interface {
	// Validate returns every fault, joined; each is a *FieldError.
	Validate() error
	// Build makes the provider of a valid config. Nothing is opened before Run.
	Build(deps Deps) (discovery.Provider, error)
}

// Deps are what a provider needs besides its own section.
type Deps struct {
	// Name is the provider's name within its pool; "" is the type's.
	Name   string
	Consul ConsulSettings
	// ClusterID is the cluster that the pool has to be of, "" when the configuration does not say.
	ClusterID string
	// Log gets what is wrong with single entries; nil is no log.
	Log *zap.Logger
	// Now is the clock that stamps updates; nil is time.Now.
	Now func() time.Time
	// Transport carries HTTP requests; nil is the provider's own. For tests.
	Transport http.RoundTripper
}

// withDefaults fills in what may be left out.
func (d Deps) withDefaults(name string) Deps {
	d.Name = cmp.Or(d.Name, name)
	if d.Log == nil {
		d.Log = zap.NewNop()
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	return d
}

// Entry describes one provider type.
type Entry struct {
	// NewConfig returns a pointer to the type's config struct with its defaults set, for the YAML decoder to fill.
	NewConfig func() Config
	// Doc is one line for `kvip check` and the reference.
	Doc string
}

// Registry has every provider by the word that `discovery.type` takes.
var Registry = map[string]Entry{
	"static":    {NewConfig: func() Config { return &StaticConfig{} }, Doc: "a fixed list: brokers: [host:port, ...]"},
	"consul":    {NewConfig: func() Config { return &ConsulConfig{} }, Doc: "a Consul service: service: NAME, tags: [...]"},
	"file":      {NewConfig: func() Config { return &FileConfig{} }, Doc: "a YAML or JSON file that others write: path: FILE"},
	"dns":       {NewConfig: func() Config { return &DNSConfig{Port: defaultPort, Interval: defaultPoll} }, Doc: "addresses or SRV records: name: NAME, port, record, server, interval"},
	"kafka":     {NewConfig: func() Config { return &KafkaConfig{Interval: defaultPoll} }, Doc: "the cluster's own broker list: seeds: [host:port, ...], interval"},
	"zookeeper": {NewConfig: func() Config { return &ZookeeperConfig{Session: defaultSession} }, Doc: "where brokers before Kafka 4.0 register: servers: [host:port, ...], chroot, listener, session"},
}

// FieldError is a fault in one field, for the loader to print with its line and caret.
type FieldError struct {
	// Field is the path below the section, as YAML paths are written: "service", "brokers[1]", "brokers[1].weight".
	Field string
	// Problem says what is wrong with it, Fix what to write instead.
	Problem, Fix string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem + "; " + e.Fix }

// splitAddr reads a configured host:port.
func splitAddr(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port", addr)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q has no port from 1 to 65535", addr)
	}
	if host, err = cleanHost(host); err != nil {
		return "", 0, fmt.Errorf("%q: %w", addr, err)
	}
	return host, int(n), nil
}

// maxHost is the longest name that DNS knows.
const maxHost = 253

// cleanHost brings a host into the one spelling that an Addr is compared by, and refuses what nothing can be dialled by.
func cleanHost(host string) (string, error) {
	host = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip = ip.Unmap(); ip.IsUnspecified() || ip.IsMulticast() {
			return "", fmt.Errorf("%s is no address to connect to", ip)
		}
		return ip.String(), nil
	}
	if host == "" || len(host) > maxHost || strings.IndexFunc(host, notInName) >= 0 {
		return "", fmt.Errorf("%.60q is no host name", host)
	}
	return host, nil
}

// notInName says which characters cannot be in a name that resolvers are asked for. It is lenient: underscores are in use.
func notInName(r rune) bool {
	return r != '.' && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
}
