package session

import "github.com/kvip/kvip/protocol/wire"

// Reason is why a connection ended. The names are metric labels and what `kvip status` and the ring of last closes show.
type Reason uint8

// The reasons. Those up to ReasonVersion are wire's faults, in the same order: a broker closes on them too.
const (
	ReasonNone Reason = iota
	ReasonTLS
	ReasonHTTP
	ReasonProxy
	ReasonSSH
	ReasonSize
	ReasonHeader
	ReasonBody
	ReasonKey
	ReasonVersion
	// ReasonClient: the client closed, or its connection broke.
	ReasonClient
	// ReasonReset: reading or writing failed.
	ReasonReset
	// ReasonRefused: a request that does not belong at a bootstrap address and has no answer that says so.
	ReasonRefused
	// ReasonAcksZero: Produce with acks=0 has no answer, so a close is the only word (a broker does the same).
	ReasonAcksZero
	// ReasonWrite: a request that changes the cluster, where forward.writes is off.
	ReasonWrite
	// ReasonNoSnapshot: nothing may be said yet, or any more: no snapshot, or one older than max_stale.
	ReasonNoSnapshot
	// ReasonNoBroker, ReasonForwardTimeout, ReasonForwardBusy, ReasonForwardFailed: a forwarded request got no answer.
	ReasonNoBroker
	ReasonForwardTimeout
	ReasonForwardBusy
	ReasonForwardFailed
	// ReasonFirstByte, ReasonFrame, ReasonIdle, ReasonStalled: a deadline passed: nothing sent, a frame not finished, no
	// request, an answer not read.
	ReasonFirstByte
	ReasonFrame
	ReasonIdle
	ReasonStalled
	// ReasonInbound: more bytes than the inbound cap while a request waited.
	ReasonInbound
	// ReasonBuffered: all connections together held more unserved bytes than the VIP's budget, and this one for longest.
	ReasonBuffered
	// ReasonOutbound: more answer bytes copied for this connection than the outbound cap.
	ReasonOutbound
	// ReasonEvicted: the table was full and this connection was the oldest that nobody was waiting on.
	ReasonEvicted
	// ReasonFull: a newcomer found the table full and nobody to evict.
	ReasonFull
	// ReasonDraining: kvip is on its way out.
	ReasonDraining
	// ReasonPanic: a bug in kvip; the stack is in the log.
	ReasonPanic
	reasons
)

var reasonNames = [reasons]string{
	"", "tls", "http", "proxy", "ssh", "size", "header", "body", "key", "version",
	"client", "reset", "refused", "acks_zero", "write", "no_snapshot",
	"no_broker", "forward_timeout", "forward_busy", "forward_failed",
	"first_byte", "frame", "idle", "stalled", "inbound", "buffered", "outbound", "evicted", "full", "draining", "panic",
}

// String returns the reason's label.
func (r Reason) String() string { return reasonNames[r] }

// Reasons returns every reason that a close can have.
func Reasons() []Reason {
	all := make([]Reason, 0, reasons-1)
	for r := ReasonNone + 1; r < reasons; r++ {
		all = append(all, r)
	}
	return all
}

// Orderly says that the connection may end with a FIN; any other end is a reset, because a FIN before the first answer
// makes franz-go give up and old clients guess versions (clients.md R25).
func (r Reason) Orderly() bool {
	switch r {
	case ReasonClient, ReasonIdle, ReasonDraining, ReasonEvicted:
		return true
	}
	return r <= ReasonVersion // as a broker closes
}

func faultReason(f wire.Fault) Reason { return Reason(f) }
