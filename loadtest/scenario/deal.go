package scenario

// deal gives names in turn, each as often as its weight says.
type deal struct {
	shares []Share
	owed   []int
	total  int
}

func newDeal(shares []Share) deal {
	d := deal{shares: shares, owed: make([]int, len(shares))}
	for _, s := range shares {
		d.total += s.Weight
	}
	return d
}

func (d *deal) next() string {
	most := 0
	for i, s := range d.shares {
		d.owed[i] += s.Weight
		if d.owed[i] > d.owed[most] {
			most = i
		}
	}
	d.owed[most] -= d.total
	return d.shares[most].Name
}
