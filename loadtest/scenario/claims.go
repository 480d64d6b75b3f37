package scenario

import (
	"time"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/engine"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/record"
)

// claim is what a served operation was told, until the brokers have been heard on it.
type claim struct {
	at   time.Duration // of the operation's end, since the measurement's begin
	due  engine.Time   // of the verdict
	told []check.Told
}

// claim keeps what an operation was told.
func (s *shard) claim(o *op, now engine.Time) {
	if len(o.told) == 0 {
		return
	}
	c := claim{at: now.Sub(s.from), due: now.Add(s.cfg.Truth.Wait()), told: o.told}
	o.told = nil
	s.claims.push(c)
	if s.claims.len() == 1 {
		s.verdicts.Set(c.due)
	}
}

// verdict judges the claims on which the brokers have been heard by now. An operation that was told what no broker said
// was not served after all.
func (s *shard) verdict() {
	now := engine.Now()
	for s.claims.len() > 0 && s.claims.first().due <= now {
		s.hold(s.claims.pop())
	}
	if s.claims.len() > 0 {
		s.verdicts.Set(s.claims.first().due)
	}
	s.settle()
}

func (s *shard) hold(c claim) {
	for _, t := range c.told {
		age, detail := s.cfg.Truth.Judge(t)
		if detail != "" {
			s.rec.Retract(c.at, failure.Untrue, detail)
			return
		}
		s.rec.Took(record.Age, age)
	}
}
