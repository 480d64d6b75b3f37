package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Options hold whatever the policy.
type Options struct {
	// Zone is the rack whose members are picked first, as long as they carry the load; "": none is preferred.
	Zone string
	// Full is the load at which the heaviest member carries no more, and others in proportion to their weight; 0: none
	// ever is full.
	Full int
}

// fullPart is a whole share.
const fullPart = 1000

// Build makes a picker by the policy of that name, which has to be in Policies. was is what Build returned before for
// that name and those options, or nil.
func Build(name string, members []Member, o Options, was Picker) Picker {
	p := Policies[name]
	if o.Zone == "" {
		old, _ := was.(*partial)
		return newPartial(p, members, old)
	}
	return newZoned(p, members, o, was)
}

// partial lets some members have a part of their share only: a request that would be beyond it is picked once more, among
// the others. Placement stays as it is while the part grows.
type partial struct {
	Picker
	key   func(uint64) uint64
	parts []Member
	// rest picks among those with their whole share, whose indices full has; nil when there are none, or all are.
	rest Picker
	full []int32
}

func newPartial(p Policy, members []Member, old *partial) *partial {
	if old == nil {
		old = &partial{}
	}
	g := &partial{key: p.Key, parts: members, Picker: p.New(members, old.Picker)}
	if !slices.ContainsFunc(members, func(m Member) bool { return m.Part != nil }) {
		return g
	}
	rest := make([]Member, 0, len(members))
	weights := weightsOf(members)
	for i, m := range members {
		if m.Part == nil && weights[i] > 0 {
			rest, g.full = append(rest, m), append(g.full, int32(i))
		}
	}
	if len(rest) > 0 {
		was := old.rest
		if was == nil {
			was = old.Picker // whoever has just come back has a part, and the others are whom there was before
		}
		g.rest = p.New(rest, was)
	}
	return g
}

// beyond says that the request would be more than the member's part, and that another one has its whole share.
func (g *partial) beyond(i int, client uint64) bool { return g.rest != nil && g.over(i, client) }

// over says that the request would be more than the member's part.
func (g *partial) over(i int, client uint64) bool {
	if i < 0 || g.parts[i].Part == nil {
		return false
	}
	draw := rand.Int32N(fullPart)
	if g.key != nil {
		draw = int32(mix(g.key(client)+1) % fullPart) // the same clients come first each time
	}
	return draw >= g.parts[i].Part.Load()
}

func (g *partial) Pick(client uint64) int {
	i := g.Picker.Pick(client)
	if !g.beyond(i, client) {
		return i
	}
	return int(g.full[g.rest.Pick(client)])
}

func (g *partial) Explain(client uint64) (int, string) {
	i, why := g.Picker.Explain(client)
	if !g.beyond(i, client) {
		return i, why
	}
	j, other := g.rest.Explain(client)
	return int(g.full[j]), fmt.Sprintf("%s has only %.0f%% of its share for now, and this is beyond it; among the others: %s",
		g.parts[i].Addr, float64(g.parts[i].Part.Load())/(fullPart/100), other)
}

// zoned picks in its own zone as long as whom it picks is not full, and spills over into the others after that. What is
// beyond the part of a member goes to those of the zone that have their whole share, and to the others if none has.
type zoned struct {
	zone       string
	own, other *partial
	// The indices of own's and other's members.
	ownAt, otherAt []int32
	members        []Member
	// limit is the load at which each of own's members is full, 0 for never.
	limit []int64
}

// zoneTries is how many picks in the own zone may meet a full member before another zone is asked.
const zoneTries = 3

func newZoned(p Policy, members []Member, o Options, was Picker) Picker {
	z := &zoned{zone: o.Zone, members: members}
	old, _ := was.(*zoned)
	if old == nil {
		old = &zoned{}
	}
	weights := weightsOf(members)
	var own, other []Member
	for i, m := range members {
		switch {
		case weights[i] == 0:
		case m.Rack == o.Zone:
			own, z.ownAt = append(own, m), append(z.ownAt, int32(i))
			z.limit = append(z.limit, 0)
			if o.Full > 0 {
				z.limit[len(own)-1] = max(1, int64(o.Full)*int64(weights[i])/int64(slices.Max(weights)))
			}
		default:
			other, z.otherAt = append(other, m), append(z.otherAt, int32(i))
		}
	}
	z.own, z.other = newPartial(p, own, old.own), newPartial(p, other, old.other)
	return z
}

// spare says that nobody of the zone has its whole share, and that the request is beyond the part of whom it would get.
func (z *zoned) spare(i int, client uint64) bool { return z.own.rest == nil && z.own.over(i, client) }

func (z *zoned) full(i int) bool { return z.limit[i] > 0 && z.members[z.ownAt[i]].load() >= z.limit[i] }

func (z *zoned) Pick(client uint64) int {
	own := -1
	for range zoneTries {
		if own = z.own.Pick(client); own < 0 || z.spare(own, client) {
			break
		}
		if !z.full(own) {
			return int(z.ownAt[own])
		}
	}
	if other := z.other.Pick(client); other >= 0 {
		return int(z.otherAt[other])
	}
	if own < 0 {
		return -1
	}
	return int(z.ownAt[own])
}

func (z *zoned) Explain(client uint64) (int, string) {
	own := -1
	var why string
	spared := false
	for range zoneTries {
		if own, why = z.own.Explain(client); own < 0 {
			break
		}
		if spared = z.spare(own, client); spared {
			break
		}
		if !z.full(own) {
			return int(z.ownAt[own]), fmt.Sprintf("brokers of rack %q come first; among them: %s", z.zone, why)
		}
	}
	other, otherWhy := z.other.Explain(client)
	switch {
	case other < 0 && own < 0:
		return -1, ""
	case other < 0 && spared:
		return int(z.ownAt[own]), fmt.Sprintf("brokers of rack %q have only a part of their share, and there are no others; among them: %s", z.zone, why)
	case other < 0:
		return int(z.ownAt[own]), fmt.Sprintf("brokers of rack %q are full, and there are no others; among them: %s", z.zone, why)
	case own < 0:
		return int(z.otherAt[other]), fmt.Sprintf("no broker of rack %q can be used; among the others: %s", z.zone, otherWhy)
	case spared:
		return int(z.otherAt[other]), fmt.Sprintf("brokers of rack %q have only a part of their share for now, and this is beyond it; among the others: %s", z.zone, otherWhy)
	}
	return int(z.otherAt[other]), fmt.Sprintf("brokers of rack %q are full; among the others: %s", z.zone, otherWhy)
}
