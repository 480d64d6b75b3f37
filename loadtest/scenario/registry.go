package scenario

import (
	"maps"
	"slices"
)

// client is one virtual client, driven by its shard's loop. prepare is called once, before load begins; the client calls
// shard.free when it can take an operation: once prepared, and after each.
type client interface {
	prepare()
	// start begins an operation that should have begun at the shard's intended time.
	start()
}

// paced is a client that begins operations at its own times. It calls shard.free once, when it is prepared.
type paced interface {
	client
	// pause ends the pace; an operation under way goes on. start, called instead of for an operation, begins it.
	pause()
}

// Kind is what a name on the command line stands for.
type Kind struct {
	About string // for help texts
	Paced bool   // its clients have times of their own: no rate, no closed loop
	New   func(*shard) client
}

// Scenarios are the kinds of virtual clients by name.
var Scenarios = map[string]Kind{
	"kept":        {"look up over kept connections, each by whoever is free", false, newKept},
	"storm":       {"connect, ApiVersions, Metadata, close", false, newStorm},
	"steady":      {"kept connections that refresh when real libraries do", true, newSteady},
	"reconnect":   {"all connections drop at once; each library's back-off", true, newReconnect},
	"rebootstrap": {"all clients come back to bootstrap within --spread", true, newRebootstrap},
	"mixed":       {"several of the others side by side, by --mix", false, newMixed},
	"slowreader":  {"look up, and read the answer slowly", false, newSlowReader},
	"hostile":     {"send what no client sends", false, newHostile},
}

// Names lists the scenarios.
func Names() []string { return slices.Sorted(maps.Keys(Scenarios)) }
