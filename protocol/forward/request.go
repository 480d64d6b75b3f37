// Package forward says what happens to a request that kvip does not answer itself: one rule a key, and the request as it
// travels to a broker.
package forward

import (
	"context"
	"errors"
	"time"
)

// Request is one client request on its way to a broker. Frame, Key, Version and the rest are set by the session and not
// changed afterwards; Frame belongs to the request.
type Request struct {
	Key     int16
	Version int16
	// Frame is the whole request, its 4-byte size included; the correlation id at offset 8 is the client's, to be
	// rewritten by whoever sends it.
	Frame []byte
	// Retry says that a second broker may be asked when the first does not answer: a read that any broker answers.
	Retry bool
	// Timeout bounds everything, all tries together.
	Timeout time.Duration
	// Client is the ClientKey by which policies that look at the client pick.
	Client uint64
	// Broker is the address of the broker that this connection's forwards stick to, "" before the first. A lookup under
	// `lookup: forward` has Spread set instead: the policy picks anew each time.
	Broker string
	Spread bool
	// Shared says that the request carries nothing of its connection, so that an identical one in flight may share its
	// answer: same bytes but for the correlation id and client id.
	Shared bool
	// Ctx ends when the client has gone.
	Ctx context.Context
	// Done is called once, from any goroutine, and must not block.
	Done func(Result)
}

// Result is what became of a forwarded request.
type Result struct {
	// Frame is the broker's whole answer, its size included, with the client's correlation id restored. It may be
	// shared: nobody writes to it.
	Frame []byte
	// Broker is the address of the broker that answered, for the connection to stick to.
	Broker string
	// Err is why there is no answer: ErrNoBroker, ErrDeadline, ErrBusy or a transport error.
	Err error
}

// What a forwarded request can fail with, besides transport errors.
var (
	// ErrNoBroker: no broker of the pool may be asked.
	ErrNoBroker = errors.New("no broker of the pool may be asked")
	// ErrDeadline: no broker answered in the request's time.
	ErrDeadline = errors.New("no broker answered in time")
	// ErrBusy: the pool's forward queue is full.
	ErrBusy = errors.New("too many forwarded requests are waiting")
)
