package discovery

import (
	"maps"
	"slices"
)

// Orders are what operators have said about single members, over whatever the registries list. Addresses are as
// Instance.Addr writes them.
type Orders struct {
	// Removed are no members, as soon as it is known.
	Removed []string
	// Weights hold instead of the registry's; 0 drains.
	Weights map[string]int
}

// Overseer is a Provider that lists no members: its updates carry Orders. It has no say in who is a member otherwise, and
// the first decision of a pool waits a moment for it, so that a drained member is not asked at every start.
type Overseer interface {
	Provider
	// Oversees does nothing; it tells the two kinds of provider apart.
	Oversees()
}

// order replaces what operators have said.
func (m *Membership) order(o Orders) {
	m.removed = make(map[string]bool, len(o.Removed))
	for _, a := range o.Removed {
		m.removed[a] = true
	}
	m.weights = maps.Clone(o.Weights)
}

// ordered returns an instance with the weight that an operator has given it.
func (m *Membership) ordered(in Instance) Instance {
	if weight, ok := m.weights[in.Addr()]; ok {
		in.Weight = weight
	}
	return in
}

// overseers splits providers into those that list members, by name, and those that give orders.
func overseers(all []Provider) (lists []string, orders map[string]bool) {
	orders = map[string]bool{}
	for _, p := range all {
		if _, ok := p.(Overseer); ok {
			orders[p.Name()] = true
		} else {
			lists = append(lists, p.Name())
		}
	}
	return slices.Clip(lists), orders
}
