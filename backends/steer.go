package backends

import (
	"sync/atomic"
	"time"

	"github.com/kvip/kvip/healthcheck"
)

const (
	// trialPart is the share of its share, in thousandths, that a member on trial gets; a rising one begins with as much.
	trialPart, wholePart = 100, 1000
)

// steer decides, among the members that their own facts let serve, who is ejected or on trial, whose share grows, and
// whether the pool is in need. It does not touch what Metadata says: only whom kvip asks.
func (w *writer) steer(was []State) {
	now := time.Now()
	w.peers = w.peers[:0]
	for _, m := range w.sorted {
		if m.state == Serving || m.state == Down && m.inst.Weight > 0 {
			w.peers = append(w.peers, healthcheck.Peer{Name: m.addr, Passing: m.state == Serving})
		}
	}
	w.outliers.Follow(now, w.peers)
	passing := 0
	for _, m := range w.sorted {
		if m.state != Serving {
			continue
		}
		passing++
		switch o := w.outliers.Get(m.addr); o.Standing {
		case healthcheck.Trial:
			m.state, m.reason, m.detail = Trial, o.Reason, "on trial after an ejection: "+o.Detail
		case healthcheck.Ejected:
			m.state, m.reason, m.detail = Ejected, o.Reason, o.Detail
		}
		if m.state != Serving {
			m.shown = false // an ejection's end is shown too
		}
	}
	w.raise(now, was)
	need := 2*passing < len(w.peers)
	if need != w.need {
		w.need = need
		if need {
			w.p.log.Error("fewer than half of the brokers pass their probes: those that do not are asked too, when the others have failed")
		} else {
			w.p.log.Info("at least half of the brokers pass their probes again")
		}
	}
}

// judge compares the members, ends ejections and lets shares grow: all that time alone brings about.
func (w *writer) judge() (cause string) {
	now := time.Now()
	if w.outliers.Judge(now, w.peers) {
		cause = "outliers"
	}
	if w.outliers.Follow(now, w.peers) {
		cause = "time"
	}
	for _, m := range w.sorted {
		if m.rising.IsZero() {
			continue
		}
		if part := w.grown(m, now); part < wholePart {
			m.part.Store(part)
			w.showMember(m)
		} else {
			cause = "slow start"
		}
	}
	return cause
}

// raise starts to let the share of a member grow that has begun to serve while most serve already: a broker that is just
// up is cold. Where most are new, nobody has anything to take over.
func (w *writer) raise(now time.Time, was []State) {
	full, serving, settled := 0, 0, false
	for i, m := range w.sorted {
		switch m.state {
		case Trial:
			if m.part == nil || !m.rising.IsZero() {
				m.part, m.rising, m.shown = new(atomic.Int32), time.Time{}, false
				m.part.Store(trialPart)
			}
		case Serving:
			serving++
			if was[i] == Serving && m.rising.IsZero() {
				full++
				settled = settled || now.Sub(m.since) >= w.p.cfg.SlowStart
			}
		default:
			m.part, m.rising = nil, time.Time{}
		}
	}
	enough := settled && w.p.cfg.SlowStart > 0 && 2*full >= serving
	for i, m := range w.sorted {
		if m.state != Serving {
			continue
		}
		if was[i] != Serving && enough {
			m.part, m.rising, m.shown = new(atomic.Int32), now, false
			m.part.Store(trialPart)
		}
		if was[i] != Serving && !enough || !m.rising.IsZero() && (2*full < serving || w.grown(m, now) >= wholePart) {
			m.part, m.rising, m.shown = nil, time.Time{}, false
		}
	}
}

// grown is a rising member's part by now.
func (w *writer) grown(m *member, now time.Time) int32 {
	if w.p.cfg.SlowStart <= 0 {
		return wholePart
	}
	return int32(min(wholePart, max(trialPart, wholePart*now.Sub(m.rising)/w.p.cfg.SlowStart)))
}
