package healthcheck

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Method is the statistic by which an outlier is told.
type Method string

// The methods.
const (
	// IQR: beyond Q3 + 1.5 x the interquartile range.
	IQR Method = "iqr"
	// Deviation: beyond the mean + k standard deviations.
	Deviation Method = "stddev"
	// NoOutliers: nobody is ejected for what it measures.
	NoOutliers Method = "off"
)

// Methods has every method.
var Methods = []Method{IQR, Deviation, NoOutliers}

// OutlierConfig says who is an outlier and for how long; zero values are the defaults.
type OutlierConfig struct {
	// Method is the statistic for pools of 5 and more (IQR); smaller ones go by three times the median.
	Method Method
	// K is the number of standard deviations (1.9).
	K float64
	// Window is how many of its last probes a member's latency is judged by (10), MinSamples how many it takes (5). It is
	// twice as many for failures, which are told by how often they come.
	Window, MinSamples int
	// Floor is the latency below which nobody is an outlier (100 ms), ErrorFloor the share of failures (0.25).
	Floor      time.Duration
	ErrorFloor float64
	// Eject is how long a first ejection lasts (30 s); each further one is longer by as much, up to MaxEject (5 min).
	Eject, MaxEject time.Duration
	// Calm is the time without trouble after which one ejection, or one fall, is forgotten (5 min).
	Calm time.Duration
	// Falls is how many times a member may fall and rise before it has to wait (2).
	Falls int
	// Rand returns a number in [0,1); default math/rand/v2's.
	Rand func() float64
}

func (c OutlierConfig) withDefaults() OutlierConfig {
	c.Method = cmp.Or(c.Method, IQR)
	c.K = cmp.Or(max(c.K, 0), 1.9)
	c.Window = cmp.Or(max(c.Window, 0), 10)
	c.MinSamples = min(cmp.Or(max(c.MinSamples, 0), 5), c.Window)
	c.Floor = cmp.Or(max(c.Floor, 0), 100*time.Millisecond)
	c.ErrorFloor = cmp.Or(max(c.ErrorFloor, 0), 0.25)
	c.Eject = cmp.Or(max(c.Eject, 0), 30*time.Second)
	c.MaxEject = max(cmp.Or(max(c.MaxEject, 0), 5*time.Minute), c.Eject)
	c.Calm = cmp.Or(max(c.Calm, 0), 5*time.Minute)
	c.Falls = cmp.Or(max(c.Falls, 0), 2)
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// most is how many ejections, and falls beyond those that are free, are remembered: more of them make none last longer, and
// would have to be forgotten one by one.
func (c OutlierConfig) most() int { return int((c.MaxEject + c.Eject - 1) / c.Eject) }

// Standing is what a target whose probe passes may be used for.
type Standing string

// The standings.
const (
	Serving Standing = "serving"
	// Trial: it has been ejected, and gets a small share until it has shown a clean window.
	Trial Standing = "trial"
	// Ejected: it is out for a time.
	Ejected Standing = "ejected"
)

// Why a target is ejected.
const (
	ReasonLatency  Reason = "latency"  // it answers much more slowly than the others
	ReasonErrors   Reason = "errors"   // it fails much more often than the others
	ReasonFlapping Reason = "flapping" // it has come and gone too often
)

// Peer is one target as a pool counts it.
type Peer struct {
	Name string
	// Passing says that its probe passes.
	Passing bool
}

// Outlier is what is known about one target. While it is on trial, Reason and Detail are those of its ejection.
type Outlier struct {
	Standing Standing
	Reason   Reason
	Detail   string
	// Since is when the standing began; Until is when an ejection ends.
	Since, Until time.Time
	// Times is how many ejections are remembered.
	Times int
}

// Outliers ejects targets that do much worse than their peers, lets them back by trial, and never takes so many that less
// than half of a pool serves. It measures what its owner tells it: that must never be anything that a client can bring
// about. It is for concurrent callers.
type Outliers struct {
	cfg OutlierConfig

	mu      sync.Mutex
	targets map[string]*measured
}

// measured is one target.
type measured struct {
	Outlier
	name            string
	latency, errors window
	falls           int
	// calmSince is when the last trouble was, or was last forgotten.
	calmSince time.Time
	passing   bool
}

// NewOutliers returns an Outliers without targets.
func NewOutliers(cfg OutlierConfig) *Outliers {
	return &Outliers{cfg: cfg.withDefaults(), targets: map[string]*measured{}}
}

// Add begins to measure a target, if it is not measured yet.
func (o *Outliers) Add(name string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.targets[name] == nil {
		o.targets[name] = &measured{name: name, Outlier: Outlier{Standing: Serving, Since: now}, calmSince: now}
	}
}

// Forget drops a target, its ejections with it.
func (o *Outliers) Forget(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.targets, name)
}

// Probed takes the outcome of a probe: its time when it passed, a failure otherwise.
func (o *Outliers) Probed(name string, v Verdict) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.targets[name]
	if t == nil {
		return
	}
	failed := 1.0
	if v.Passed() {
		failed = 0
		t.latency.add(v.Took.Seconds(), o.cfg.Window)
	}
	t.errors.add(failed, 2*o.cfg.Window)
}

// Connected takes the outcome of a connection attempt. Both outcomes have to be told, or the share of failures is wrong.
func (o *Outliers) Connected(name string, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.targets[name]; t != nil {
		failed := 1.0
		if ok {
			failed = 0
		}
		t.errors.add(failed, 2*o.cfg.Window)
	}
}

// Get returns what is known of a target; one that is not measured serves.
func (o *Outliers) Get(name string) Outlier {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.targets[name]; t != nil {
		return t.Outlier
	}
	return Outlier{Standing: Serving}
}

// Follow takes whose probe passes now, ends ejections whose time is over, holds back those that come and go, and recalls
// some when others are missing. It says whether a standing changed. peers are the whole pool, at each call.
func (o *Outliers) Follow(now time.Time, peers []Peer) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.survey(peers)
	for _, p := range peers {
		t := o.targets[p.Name]
		if t == nil {
			continue
		}
		rose := p.Passing && !t.passing
		fell := !p.Passing && t.passing
		t.passing = p.Passing
		o.forgive(t, now)
		if rose {
			t.errors.reset() // what failed while it was down, its probe has judged
		}
		switch {
		case fell:
			t.falls = min(t.falls+1, o.cfg.Falls+o.cfg.most())
			t.calmSince = now
			if t.Standing == Ejected && t.Reason == ReasonErrors {
				// What failed was on its way down: from here on the probe decides.
				t.Outlier = Outlier{Standing: Serving, Since: now, Times: t.Times - 1}
				changed = true
			}
			t.latency.reset()
			t.errors.reset()
		case rose && t.falls > o.cfg.Falls && (t.Standing == Trial || t.Standing == Serving && s.canSpare()):
			if t.Standing == Serving {
				s.serving--
			}
			o.eject(t, now, time.Duration(t.falls-o.cfg.Falls)*o.cfg.Eject, ReasonFlapping,
				fmt.Sprintf("its probe has failed and passed again, %d times that are not forgotten yet", t.falls))
			changed = true
		case t.Standing == Ejected && !now.Before(t.Until) && p.Passing:
			t.latency.reset()
			t.errors.reset()
			t.Standing, t.Since, t.Until = Trial, now, time.Time{}
			changed = true
		}
	}
	return o.recall(now, peers) || changed
}

// Judge compares the targets with one another, ejects outliers as far as the pool can spare them, and ends trials. It
// says whether a standing changed. Its owner calls it about once a second.
func (o *Outliers) Judge(now time.Time, peers []Peer) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.survey(peers)
	latency := o.limit(peers, func(t *measured) (float64, bool) { return t.latency.median, o.timed(t) },
		o.cfg.Floor.Seconds())
	errors := o.limit(peers, func(t *measured) (float64, bool) { return t.errors.mean, o.counted(t) }, o.cfg.ErrorFloor)
	var out []*measured
	for _, p := range peers {
		t := o.targets[p.Name]
		if t == nil || !p.Passing || t.Standing == Ejected {
			continue
		}
		if reason, _ := t.verdict(latency, errors, o); reason != OK {
			out = append(out, t)
			continue
		}
		if t.Standing == Trial && o.timed(t) && o.counted(t) {
			t.Outlier = Outlier{Standing: Serving, Since: now, Times: t.Times}
			t.calmSince = now
			s.serving++
			changed = true
		}
	}
	// The worst first, as not all may go.
	slices.SortStableFunc(out, func(a, b *measured) int {
		return cmp.Or(-cmp.Compare(a.errors.mean, b.errors.mean), -cmp.Compare(a.latency.median, b.latency.median))
	})
	for _, t := range out {
		if t.Standing == Serving {
			if !s.canSpare() {
				continue
			}
			s.serving--
		}
		reason, detail := t.verdict(latency, errors, o)
		t.Times = min(t.Times+1, o.cfg.most())
		o.eject(t, now, time.Duration(t.Times)*o.cfg.Eject, reason, detail)
		changed = true
	}
	return changed
}

// survey counts who serves.
type survey struct{ serving, all int }

func (o *Outliers) survey(peers []Peer) survey {
	s := survey{all: len(peers)}
	for _, p := range peers {
		if t := o.targets[p.Name]; p.Passing && (t == nil || t.Standing == Serving) {
			s.serving++
		}
	}
	return s
}

// canSpare says that at least half of the pool serves without one of those that do.
func (s survey) canSpare() bool { return 2*(s.serving-1) >= s.all }

func (o *Outliers) timed(t *measured) bool   { return len(t.latency.values) >= o.cfg.MinSamples }
func (o *Outliers) counted(t *measured) bool { return len(t.errors.values) >= 2*o.cfg.MinSamples }

// eject takes a target out. The time varies a little, so that those that left together do not come back together.
func (o *Outliers) eject(t *measured, now time.Time, d time.Duration, reason Reason, detail string) {
	d = min(d, o.cfg.MaxEject)
	d += time.Duration(o.cfg.Rand() * float64(d) / 10)
	t.Standing, t.Reason, t.Detail, t.Since, t.Until = Ejected, reason, detail, now, now.Add(d)
	t.calmSince = now
}

// forgive forgets old trouble.
func (o *Outliers) forgive(t *measured, now time.Time) {
	if t.Standing != Serving || !t.passing {
		t.calmSince = now
	}
	for now.Sub(t.calmSince) >= o.cfg.Calm {
		t.calmSince = t.calmSince.Add(o.cfg.Calm)
		if t.Times, t.falls = max(0, t.Times-1), max(0, t.falls-1); t.Times == 0 && t.falls == 0 {
			t.calmSince = now
		}
	}
}

// recall has those that are out serve again while less than half of the pool does, the one that is out for the shortest
// first: others have gone since, and a slow broker is better than none.
func (o *Outliers) recall(now time.Time, peers []Peer) (changed bool) {
	s := o.survey(peers)
	for 2*s.serving < s.all {
		var best *measured
		for _, p := range peers {
			t := o.targets[p.Name]
			if t == nil || !p.Passing || t.Standing == Serving {
				continue
			}
			if best == nil || t.Until.Before(best.Until) {
				best = t
			}
		}
		if best == nil {
			return changed
		}
		best.Outlier = Outlier{Standing: Serving, Since: now, Times: best.Times}
		s.serving++
		changed = true
	}
	return changed
}

// bound is the limit of one quantity.
type bound struct {
	limit float64
	peers int
	how   string
}

// limit works out the limit over the targets that serve and are on trial. peers is 0 when there are too few to compare.
func (o *Outliers) limit(peers []Peer, value func(*measured) (float64, bool), floor float64) bound {
	var values []float64
	for _, p := range peers {
		t := o.targets[p.Name]
		if t == nil || !p.Passing || t.Standing == Ejected {
			continue
		}
		if v, ok := value(t); ok {
			values = append(values, v)
		}
	}
	if len(values) < 2 || o.cfg.Method == NoOutliers {
		return bound{}
	}
	slices.Sort(values)
	b := bound{peers: len(values)}
	switch {
	case len(values) < smallPool:
		b.limit, b.how = smallLimit(values), "3 x median"
	case o.cfg.Method == Deviation:
		b.limit, b.how = deviationLimit(values, o.cfg.K), fmt.Sprintf("mean + %g sd", o.cfg.K)
	default:
		b.limit, b.how = iqrLimit(values), "Q3 + 1.5 IQR"
	}
	// Where all are alike, a hair's breadth is no reason.
	const margin = 1.5
	if least := max(floor, margin*quantile(values, 0.5)); b.limit < least {
		b.limit, b.how = least, "the floor"
	}
	return b
}

// verdict says whether a target is an outlier, and of what.
func (t *measured) verdict(latency, errors bound, o *Outliers) (Reason, string) {
	switch {
	case errors.peers > 0 && o.counted(t) && t.errors.mean >= errors.limit:
		return ReasonErrors, fmt.Sprintf("%.0f%% of its last probes and connects failed, the limit is %.0f%% (%s over %d brokers)",
			100*t.errors.mean, 100*errors.limit, errors.how, errors.peers)
	case latency.peers > 0 && o.timed(t) && t.latency.median >= latency.limit:
		return ReasonLatency, fmt.Sprintf("its probes take %.0f ms, the limit is %.0f ms (%s over %d brokers)",
			1000*t.latency.median, 1000*latency.limit, latency.how, latency.peers)
	}
	return OK, ""
}
