// Package provider holds the registries that kvip can watch for brokers, one file each. A new one is a file with its
// config struct, one line in Registry and one row in the conformance suite.
package provider

import (
	"net/http"
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
	Log    *zap.Logger
	// Now is the clock that stamps updates; nil is time.Now.
	Now func() time.Time
	// Transport carries HTTP requests; nil is the provider's own. For tests.
	Transport http.RoundTripper
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
	"static": {NewConfig: func() Config { return &StaticConfig{} }, Doc: "a fixed list: brokers: [host:port, ...]"},
	"consul": {NewConfig: func() Config { return &ConsulConfig{} }, Doc: "a Consul service: service: NAME, tags: [...]"},
}

// FieldError is a fault in one field, for the loader to print with its line and caret.
type FieldError struct {
	// Field is the path below the section, as YAML paths are written: "service", "brokers[1]", "brokers[1].weight".
	Field string
	// Problem says what is wrong with it, Fix what to write instead.
	Problem, Fix string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem + "; " + e.Fix }
