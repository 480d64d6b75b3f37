package front

import (
	"net/netip"
	"slices"

	"github.com/kvip/kvip/protocol/session"
)

// Status is the VIP as /statusz.json shows it.
type Status struct {
	Name        string            `json:"name"`
	Listen      string            `json:"listen"`
	Draining    bool              `json:"draining"`
	Connections int64             `json:"connections"`
	Cap         int64             `json:"cap"`
	Closed      map[string]uint64 `json:"closed"`
	// LastClosed has the last closes, newest first, clients that left by themselves among them.
	LastClosed []Closed `json:"last_closed"`
}

// Status returns the server's state.
func (s *Server) Status() Status {
	st := Status{
		Name: s.cfg.Name, Listen: s.addr, Draining: s.draining.Load(), Connections: s.conns.Load(), Cap: s.most.Load(),
		Closed: map[string]uint64{}, LastClosed: []Closed{},
	}
	for _, r := range session.Reasons() {
		if n := s.closes[r].Load(); n > 0 {
			st.Closed[r.String()] = n
		}
	}
	for _, l := range *s.loops.Load() {
		st.LastClosed = l.closes.read(st.LastClosed)
	}
	slices.SortFunc(st.LastClosed, func(a, b Closed) int { return b.At.Compare(a.At) })
	st.LastClosed = st.LastClosed[:min(len(st.LastClosed), ringSize)]
	return st
}

// ClosesOf returns the last closes of connections from one address, newest first: a few by the client itself and a few for
// a reason of ours, as long as not too many other addresses have come since.
func (s *Server) ClosesOf(client netip.Addr) []Closed { return s.sources.read(client) }
