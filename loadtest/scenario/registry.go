package scenario

// client is one virtual client, driven by its shard's loop. prepare is called once, before load begins; the client calls
// shard.free when it can take an operation: once prepared, and after each.
type client interface {
	prepare()
	// start begins an operation that should have begun at the shard's intended time.
	start()
}

// Scenarios are the kinds of virtual clients by name.
var Scenarios = map[string]func(*shard) client{
	"kept":  newKept,
	"storm": newStorm,
}
