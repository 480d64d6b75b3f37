package healthcheck

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	burst := []float64{10, 12, 15, 100}
	for name, c := range map[string]struct{ got, want float64 }{
		"IQR of 10 12 15 100":             {iqrLimit(burst), 73.375},
		"mean + 1.9 sd of 10 12 15 100":   {deviationLimit(burst, 1.9), 106.45},
		"3 x median of 10 12 15 100":      {smallLimit(burst), 36},
		"3 x median of 10 12 100":         {smallLimit([]float64{10, 12, 100}), 36},
		"3 x the better of 10 100":        {smallLimit([]float64{10, 100}), 30},
		"IQR of one":                      {iqrLimit([]float64{7}), 7},
		"mean + 1.9 sd of those that are": {deviationLimit([]float64{7, 7, 7}, 1.9), 7},
	} {
		if math.Abs(c.got-c.want) > 0.01 {
			t.Errorf("%s is %.3f, want %.3f", name, c.got, c.want)
		}
	}
	// The vectors' point: the IQR flags the last, the mean and 1.9 deviations do not.
	if iqrLimit(burst) >= 100 || deviationLimit(burst, 1.9) <= 100 {
		t.Error("the limits do not part the two methods")
	}
}

// herd is a pool of targets with latencies and failing probes, in made-up time.
type herd struct {
	o     *Outliers
	now   time.Time
	peers []Peer
	ms    []float64
	fails []func(i int) bool
	probe int
}

func newHerd(cfg OutlierConfig, ms ...float64) *herd {
	cfg.Rand = func() float64 { return 0 }
	h := &herd{o: NewOutliers(cfg), now: time.Unix(0, 0), ms: ms, fails: make([]func(int) bool, len(ms))}
	for i := range ms {
		h.peers = append(h.peers, Peer{fmt.Sprint("b", i), true})
		h.o.Add(h.peers[i].Name, h.now)
	}
	return h
}

// pass lets seconds go by, each with a probe of each.
func (h *herd) pass(seconds int) {
	for range seconds {
		h.now = h.now.Add(time.Second)
		h.probe++
		for i, p := range h.peers {
			v := Verdict{Took: time.Duration(h.ms[i] * float64(time.Millisecond))}
			if !p.Passing || h.fails[i] != nil && h.fails[i](h.probe) {
				v.Reason = "timeout"
			}
			h.o.Probed(p.Name, v)
		}
		h.o.Follow(h.now, h.peers)
		h.o.Judge(h.now, h.peers)
	}
}

// standings is the first letter of each target's standing.
func (h *herd) standings() string {
	var b strings.Builder
	for _, p := range h.peers {
		b.WriteByte(h.o.Get(p.Name).Standing[0])
	}
	return b.String()
}

func (h *herd) want(t *testing.T, want string) {
	t.Helper()
	if got := h.standings(); got != want {
		t.Fatalf("after %v the standings are %s, want %s (%+v)", h.now.Sub(time.Unix(0, 0)), got, want, h.o.Get("b0"))
	}
}

func TestWhoIsAnOutlier(t *testing.T) {
	every := func(n int) func(int) bool { return func(i int) bool { return i%n == 0 } }
	for _, c := range []struct {
		name string
		cfg  OutlierConfig
		ms   []float64
		// failing is how often the last one's probe fails, none when nil.
		failing func(int) bool
		want    string
	}{
		{"slow in a pool of six", OutlierConfig{}, []float64{1, 1, 1, 1, 1, 300}, nil, "ssssse"},
		{"slow in a pool of six, by deviation", OutlierConfig{Method: Deviation}, []float64{1, 1, 1, 1, 1, 300}, nil, "ssssse"},
		{"as slow as the decisions' vector, by IQR", OutlierConfig{Floor: time.Millisecond}, []float64{10, 10, 12, 15, 15, 100}, nil, "ssssse"},
		{"below the floor", OutlierConfig{}, []float64{1, 1, 1, 1, 1, 90}, nil, "ssssss"},
		{"all far away, one a little more", OutlierConfig{}, []float64{200, 200, 200, 200, 200, 230}, nil, "ssssss"},
		{"slow in a pool of three", OutlierConfig{}, []float64{1, 2, 150}, nil, "sse"},
		{"not three times as slow in a pool of three", OutlierConfig{}, []float64{60, 60, 150}, nil, "sss"},
		{"slow in a pool of two", OutlierConfig{}, []float64{1, 150}, nil, "se"},
		{"alone", OutlierConfig{}, []float64{400}, nil, "s"},
		{"fails now and then", OutlierConfig{}, []float64{1, 1, 1, 1, 1, 1}, every(4), "ssssse"},
		{"fails rarely", OutlierConfig{}, []float64{1, 1, 1, 1, 1, 1}, every(9), "ssssss"},
		{"off", OutlierConfig{Method: NoOutliers}, []float64{1, 1, 1, 1, 1, 300}, every(4), "ssssss"},
		{"slow in a pool of five, the first that the statistic judges", OutlierConfig{}, []float64{100, 100, 100, 120, 200}, nil, "sssse"},
		{"as slow in a pool of four", OutlierConfig{}, []float64{100, 100, 120, 200}, nil, "ssss"},
		{"more than may go", OutlierConfig{}, []float64{1, 1, 1, 400, 400, 390, 300}, nil, "sssssss"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHerd(c.cfg, c.ms...)
			h.fails[len(c.ms)-1] = c.failing
			h.pass(20)
			h.want(t, c.want)
		})
	}
}

// Two of five may go, the worst first; of three one, of two one, of one none.
func TestHalfOfAPoolAlwaysServes(t *testing.T) {
	h := newHerd(OutlierConfig{}, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	h.pass(20)
	for i := range 8 {
		h.ms[i] = 200 + float64(10*i)
		h.pass(30)
		if n := strings.Count(h.standings(), "s"); n < 5 {
			t.Fatalf("%d of 10 serve: %s", n, h.standings())
		}
	}
	// Those that serve go: some that are out are called back at once.
	for i, p := range h.peers {
		if h.o.Get(p.Name).Standing == Serving {
			h.peers[i].Passing = false
		}
	}
	h.o.Follow(h.now, h.peers)
	for _, p := range h.peers {
		if s := h.o.Get(p.Name).Standing; p.Passing && s != Serving {
			t.Errorf("%s is %s while less than half of the pool serves", p.Name, s)
		}
	}
}

// An ejection lasts longer each time; a trial is by a window of its own.
func TestEjectionTrialAndReturn(t *testing.T) {
	h := newHerd(OutlierConfig{}, 300, 1, 1, 1, 1, 1)
	h.pass(5)
	h.want(t, "esssss")
	if got := h.o.Get("b0"); got.Reason != ReasonLatency || !strings.Contains(got.Detail, "300 ms") || got.Times != 1 {
		t.Errorf("%+v", got)
	}
	h.pass(29)
	h.want(t, "esssss")
	h.pass(1)
	h.want(t, "tsssss")
	h.pass(4)
	h.want(t, "tsssss")
	h.pass(1) // the fifth sample, and it still is slow
	h.want(t, "esssss")
	h.pass(59)
	h.want(t, "esssss")
	h.ms[0] = 1
	h.pass(1)
	h.want(t, "tsssss")
	h.pass(9)
	h.want(t, "tsssss")
	h.pass(1) // ten good ones
	h.want(t, "ssssss")
	// It is not forgotten at once, but some time.
	if got := h.o.Get("b0").Times; got != 2 {
		t.Errorf("%d ejections are remembered, want 2", got)
	}
	h.pass(700)
	if got := h.o.Get("b0").Times; got != 0 {
		t.Errorf("%d ejections are remembered after 700 calm seconds", got)
	}
}

// down has a target's probe fail, or pass again.
func (h *herd) down(i int, is bool) { h.peers[i].Passing = !is }

// Where not all outliers may go, the worst goes; where some have to come back, the one whose time is over first.
func TestTheWorstGoesAndTheFirstComesBack(t *testing.T) {
	h := newHerd(OutlierConfig{}, 1, 1, 300, 400, 1, 1)
	h.down(4, true)
	h.down(5, true)
	h.pass(20) // of six with two down one can be spared
	h.want(t, "sssess")
	h = newHerd(OutlierConfig{}, 1, 1, 1, 1, 300, 1)
	h.pass(10)
	h.ms[0] = 300
	h.pass(10)
	h.want(t, "essses")
	h.down(1, true)
	h.down(2, true)
	h.o.Follow(h.now, h.peers)
	h.want(t, "esssss")
}

// Half of a pool is enough: nobody is called back for it.
func TestOneOfTwoStaysOut(t *testing.T) {
	h := newHerd(OutlierConfig{}, 1, 300)
	h.pass(10)
	h.want(t, "se")
	until := h.o.Get("b1").Until
	h.pass(15)
	if got := h.o.Get("b1"); got.Until != until || got.Times != 1 {
		t.Errorf("it was called back and ejected anew: %+v", got)
	}
}

// Ejections grow up to the longest; what is remembered of them is forgotten in calm times, not while one lasts.
func TestEjectionsGrowToTheLongest(t *testing.T) {
	h := newHerd(OutlierConfig{Calm: time.Minute, MaxEject: 220 * time.Second}, 300, 1, 1, 1, 1, 1)
	var lasted []int
	for len(lasted) < 11 {
		h.pass(1)
		if o := h.o.Get("b0"); o.Standing == Ejected && o.Since.Equal(h.now) {
			lasted = append(lasted, int(o.Until.Sub(h.now).Seconds()))
		}
	}
	if want := []int{30, 60, 90, 120, 150, 180, 210, 220, 220, 220, 220}; !slices.Equal(lasted, want) {
		t.Errorf("ejections last %v s, want %v", lasted, want)
	}
	if got := h.o.Get("b0").Times; got != 8 {
		t.Errorf("%d ejections are remembered, though none beyond the eighth makes one longer", got)
	}
}

// A restart now and then is no flapping.
func TestFallsAreForgotten(t *testing.T) {
	h := newHerd(OutlierConfig{}, 1, 1, 1)
	h.pass(1)
	for range 20 {
		h.down(0, true)
		h.pass(10)
		h.down(0, false)
		h.pass(1)
		h.want(t, "sss")
		h.pass(301)
	}
}

// Who fails on its way down is judged by its probe, and by what it does after it is back.
func TestFailuresBeforeAFallAreNoErrors(t *testing.T) {
	h := newHerd(OutlierConfig{}, 1, 1, 1, 1, 1, 1)
	h.pass(8)
	h.fails[0] = func(int) bool { return true }
	h.pass(2) // ten samples, two of them failures
	h.want(t, "ssssss")
	h.pass(1) // now it is an outlier for a moment
	h.want(t, "esssss")
	h.down(0, true)
	h.pass(1)
	if got := h.o.Get("b0"); got.Standing != Serving || got.Times != 0 {
		t.Errorf("down, it is %+v", got)
	}
	h.fails[0] = nil
	h.down(0, false)
	h.pass(12)
	h.want(t, "ssssss")
}

// Coming and going is held back: not a restart or two, but what follows them, longer each time.
func TestFlapping(t *testing.T) {
	h := newHerd(OutlierConfig{}, 1, 1, 1)
	flap := func() {
		h.peers[0].Passing = false
		h.pass(3)
		h.peers[0].Passing = true
		h.pass(1)
	}
	h.pass(1)
	flap()
	h.want(t, "sss")
	flap()
	h.want(t, "sss")
	flap()
	h.want(t, "ess")
	if got := h.o.Get("b0"); got.Reason != ReasonFlapping || got.Until.Sub(h.now) != 30*time.Second {
		t.Errorf("%+v", got)
	}
	h.pass(30)
	h.want(t, "tss")
	h.pass(10)
	h.want(t, "sss")
	flap()
	if got := h.o.Get("b0"); got.Standing != Ejected || got.Until.Sub(h.now) != time.Minute {
		t.Errorf("%+v", got)
	}
}

// What failed while a target was down has been judged by its probe: it is no outlier for it once it is back.
func TestAReturnAfterALongOutage(t *testing.T) {
	h := newHerd(OutlierConfig{}, 1, 1, 1)
	h.pass(20)
	h.peers[0].Passing = false
	h.pass(60)
	h.peers[0].Passing = true
	for range 30 {
		h.pass(1)
		h.want(t, "sss")
	}
}

// Thousands of schedules of slowness, failures, deaths and returns, drawn from a seed: at no moment are more out than may
// be, and whoever is well again serves again.
func TestSchedulesOfTrouble(t *testing.T) {
	const schedules = 3000
	ejections := 0
	for seed := range uint64(schedules) {
		rng := rand.New(rand.NewPCG(seed, 6))
		n := 1 + rng.IntN(12)
		cfg := OutlierConfig{Method: Methods[rng.IntN(2)]}
		h := newHerd(cfg, slices.Repeat([]float64{1}, n)...)
		h.o.cfg.Rand = rng.Float64
		for range 5 + rng.IntN(25) {
			i := rng.IntN(n)
			switch rng.IntN(6) {
			case 0:
				h.ms[i] = 50 + 400*rng.Float64()
			case 1:
				h.ms[i] = 1 + rng.Float64()
			case 2:
				share := rng.Float64()
				h.fails[i] = func(int) bool { return rng.Float64() < share }
			case 3:
				h.fails[i] = nil
			case 4:
				h.peers[i].Passing = false
			case 5:
				h.peers[i].Passing = true
			}
			for range 1 + rng.IntN(15) {
				before := h.standings()
				h.pass(1)
				serving, held := 0, 0
				for _, p := range h.peers {
					switch {
					case !p.Passing:
					case h.o.Get(p.Name).Standing == Serving:
						serving++
					default:
						held++
					}
				}
				if held > 0 && 2*serving < n {
					t.Fatalf("seed %d: of %d, %d serve and %d are held out: %s", seed, n, serving, held, h.standings())
				}
				after := h.standings()
				for i := range before {
					if before[i] == 's' && after[i] == 'e' {
						ejections++
					}
				}
			}
		}
		for i := range h.peers {
			h.peers[i].Passing, h.ms[i], h.fails[i] = true, 1, nil
		}
		h.pass(20)
		h.now = h.now.Add(h.o.cfg.MaxEject * 11 / 10)
		h.pass(20)
		if got := h.standings(); strings.Trim(got, "s") != "" {
			t.Fatalf("seed %d: all are well for longer than any ejection, and the standings are %s", seed, got)
		}
	}
	if ejections < schedules {
		t.Errorf("%d ejections in %d schedules: they try nothing", ejections, schedules)
	}
}

// One that goes slow and fast again, at any pace, is let in and thrown out ever more rarely.
func TestNoFlapping(t *testing.T) {
	for period := 2; period < 120; period += 7 {
		h := newHerd(OutlierConfig{}, 1, 1, 1, 1, 1, 1)
		changes := 0
		for s := range 3600 {
			h.ms[0] = 1
			if s/period%2 == 0 {
				h.ms[0] = 300
			}
			before := h.standings()
			h.pass(1)
			if h.standings() != before {
				changes++
			}
		}
		// Out, trial, in: with ejections of 30 s and more, up to 5 min.
		if changes > 60 {
			t.Errorf("a period of %d s: %d changes of standing in an hour", period, changes)
		}
	}
}

// One that comes and goes at any pace is used ever more rarely, so that the ring has rest; an hour after it is well again a
// restart is a restart.
func TestOneThatComesAndGoesIsHeldOut(t *testing.T) {
	for _, c := range []struct{ down, up int }{{3, 1}, {3, 2}, {3, 5}, {3, 8}, {3, 12}, {3, 40}, {3, 100}, {20, 5}, {60, 5}} {
		h := newHerd(OutlierConfig{}, 1, 1, 1, 1, 1, 1)
		h.pass(20)
		used, changes := true, 0
		for s := range 3600 {
			h.down(0, s%(c.down+c.up) < c.down)
			h.pass(1)
			if is := h.peers[0].Passing && h.o.Get("b0").Standing != Ejected; is != used {
				used, changes = is, changes+1
			}
		}
		if changes > 70 {
			t.Errorf("down %d s and up %d s in turn: it comes into use and goes out of it %d times in an hour", c.down, c.up, changes)
		}
		h.down(0, false)
		h.pass(3600 + 330)
		h.want(t, "ssssss")
		h.down(0, true)
		h.pass(10)
		h.down(0, false)
		h.pass(1)
		h.want(t, "ssssss")
	}
}
