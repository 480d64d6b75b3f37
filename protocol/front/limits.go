package front

import "time"

// Limits bound what one connection may take: time, bytes, and the table's space. The zero value of a field means its default.
type Limits struct {
	// FirstByte is how long a connection may stay silent after it opened; Frame how long one frame may take to arrive;
	// Idle how long a connection may rest between requests, give or take 10% so that clients that came together do not
	// leave together.
	FirstByte, Frame, Idle time.Duration
	// Stalled is how long a peer may take none of an answer that waits for it.
	Stalled time.Duration
	// FrameBytes bounds a request's size; InboundBytes what a connection may send ahead while a request of it waits;
	// OutboundBytes what is copied for a peer that does not read (slices of a snapshot are not copied).
	FrameBytes, InboundBytes, OutboundBytes int
	// BufferedBytes bounds what all connections of the VIP together have sent that cannot be served yet: halves of frames,
	// and requests behind one that waits. Above it, whoever has held such bytes for longest ends.
	BufferedBytes int
	// Tags bounds the tagged fields of one section of a request.
	Tags int
	// Hold is how long a request waits for the first snapshot after a cold start.
	Hold time.Duration
	// SilentGrace, PartialGrace and BootGrace are how long, when the table is full, a connection is left alone that has
	// sent nothing, part of a frame, or no lookup yet.
	SilentGrace, PartialGrace, BootGrace time.Duration
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		FirstByte: 10 * time.Second, Frame: 5 * time.Second, Idle: 10 * time.Minute, Stalled: 30 * time.Second,
		FrameBytes: 2 << 20, InboundBytes: 4 << 20, OutboundBytes: 2 << 20, BufferedBytes: 32 << 20, Tags: 16, Hold: 3 * time.Second,
		SilentGrace: 100 * time.Millisecond, PartialGrace: time.Second, BootGrace: 2 * time.Second,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, p := range []struct{ v, def *time.Duration }{
		{&l.FirstByte, &d.FirstByte}, {&l.Frame, &d.Frame}, {&l.Idle, &d.Idle}, {&l.Stalled, &d.Stalled}, {&l.Hold, &d.Hold},
		{&l.SilentGrace, &d.SilentGrace}, {&l.PartialGrace, &d.PartialGrace}, {&l.BootGrace, &d.BootGrace},
	} {
		if *p.v == 0 {
			*p.v = *p.def
		}
	}
	for _, p := range []struct{ v, def *int }{
		{&l.FrameBytes, &d.FrameBytes}, {&l.InboundBytes, &d.InboundBytes}, {&l.OutboundBytes, &d.OutboundBytes},
		{&l.BufferedBytes, &d.BufferedBytes}, {&l.Tags, &d.Tags},
	} {
		if *p.v == 0 {
			*p.v = *p.def
		}
	}
	return l
}
