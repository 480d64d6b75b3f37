package scenario

import "github.com/kvip/kvip/loadtest/record"

// newMixed makes each client one of another scenario, by the mix's weights. Whoever is free longest takes the next
// operation, so that operations come in the same shares.
func newMixed(s *shard) client {
	return s.kinds[s.mixDeal.next()].New(s)
}

// stage is where the time of a misbehaving client's operations belongs: beside others it must not spoil theirs.
func (s *shard) stage(beside record.Stage) record.Stage {
	if s.cfg.Scenario == "mixed" {
		return beside
	}
	return record.Operation
}
