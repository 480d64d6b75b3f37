// Package failure names what can go wrong with one operation of the load test, and whose fault it is: the target's, or
// this machine's (out of ports, descriptors, memory), which is counted apart and never held against the target.
package failure

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Class is the kind of one failure. The zero Class is no failure.
type Class uint8

// The classes, in the order in which reports list them.
const (
	None Class = iota

	Refused     // nobody listens: ECONNREFUSED
	Unreachable // no route to the target
	Reset       // the target cut the connection: RST
	Closed      // the target closed the connection (FIN) while an answer was due, before its first byte
	Short       // the connection ended inside an answer, or a body ended inside a field
	Timeout     // no connection, or no whole answer, within the operation's time

	WrongID      // an answer whose correlation id is not that of the oldest open request
	Unasked      // bytes that no request asked for
	Malformed    // an answer that is not what its version's schema says, or a frame of an impossible length
	ErrorCode    // a well-formed answer with an error code of Kafka's
	EmptyList    // Metadata with no broker
	MissingTopic // Metadata without a topic that was asked for, or with one that was not
	WrongCluster // Metadata of another cluster than this connection's first one, or than the one asked for
	EpochBack    // a partition's leader epoch is lower than one this client has seen
	StaleAddress // an advertised broker does not accept a connection
	Untrue       // an answer that says what no broker said at the time

	LocalPorts       // this machine has no ephemeral port left for the source address
	LocalDescriptors // this process is out of descriptors
	LocalMemory      // the kernel refuses memory for a socket
	LocalNoClient    // no virtual client was free within the operation's time: the load needs more of them
	LocalOther       // anything else that failed here

	Classes // number of classes; not a class
)

var names = [Classes]string{
	None: "none", Refused: "refused", Unreachable: "unreachable", Reset: "reset", Closed: "closed", Short: "short", Timeout: "timeout",
	WrongID: "wrong_id", Unasked: "unasked", Malformed: "malformed", ErrorCode: "error_code", EmptyList: "empty_list", MissingTopic: "missing_topic",
	WrongCluster: "wrong_cluster", EpochBack: "epoch_back", StaleAddress: "stale_address", Untrue: "untrue",
	LocalPorts: "local_ports", LocalDescriptors: "local_descriptors", LocalMemory: "local_memory",
	LocalNoClient: "no_client", LocalOther: "local_other",
}

// String is the class's name in reports, assertions and JSON.
func (c Class) String() string {
	if c < Classes {
		return names[c]
	}
	return "unknown"
}

// Local says that this machine failed, not the target.
func (c Class) Local() bool { return c >= LocalPorts && c < Classes }

// Error is a failed operation: its class and what was seen.
type Error struct {
	Class  Class
	Detail string // "error 5 for topic orders"; may be empty
}

// Error implements error.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Class.String()
	}
	return e.Class.String() + ": " + e.Detail
}

// OfConnect classifies an error of socket, bind or connect.
func OfConnect(err error) Class {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused
	case errors.Is(err, unix.ECONNRESET):
		return Reset
	case errors.Is(err, unix.ETIMEDOUT):
		return Timeout
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return Unreachable
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EAGAIN):
		return LocalPorts
	}
	return local(err)
}

// OfStream classifies an error of read or write on an established connection.
func OfStream(err error) Class {
	switch {
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return Reset
	case errors.Is(err, unix.ETIMEDOUT):
		return Timeout
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return Unreachable
	}
	return local(err)
}

func local(err error) Class {
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return LocalDescriptors
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
		return LocalMemory
	}
	return LocalOther
}
