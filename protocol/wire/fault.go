// Package wire reads what clients put on the wire: it splits frames, reads request headers, and parses in place the few
// requests that kvip answers itself. Everything is bounded before anything is believed, and nothing here allocates.
package wire

// Fault is why a connection's bytes end it. It is a closed set: the names are metric labels.
type Fault uint8

// The faults that bytes can have. A broker closes without an answer on each of them, and so does kvip.
const (
	// OK is the absence of a fault.
	OK Fault = iota
	// FaultTLS: a TLS record where a Kafka frame should be.
	FaultTLS
	// FaultHTTP: an HTTP request line.
	FaultHTTP
	// FaultProxy: a PROXY protocol header, which this listener was not told to expect.
	FaultProxy
	// FaultSSH: an SSH banner.
	FaultSSH
	// FaultSize: a frame size that is negative, smaller than a header, or above the limit.
	FaultSize
	// FaultHeader: a request header that does not parse, or has too many tagged fields.
	FaultHeader
	// FaultBody: a request body that does not parse.
	FaultBody
	// FaultKey: an api key that the pool's brokers do not list.
	FaultKey
	// FaultVersion: a version of a listed key that they do not list.
	FaultVersion
)

var faultNames = [...]string{"", "tls", "http", "proxy", "ssh", "size", "header", "body", "key", "version"}

// String returns the fault's label.
func (f Fault) String() string { return faultNames[f] }
