package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// sample is a run in which things happen, as reports are looked at: a storm of two minutes on a gateway whose brokers are
// killed and brought back, with its calibration. Its latency is factor times that of the usual one.
func sample(name string, factor float64) *Run {
	rng := rand.New(rand.NewPCG(7, uint64(factor*100)))
	const seconds = 120
	s := Side{
		Target: "127.0.0.1:9092", Name: name, Elapsed: seconds, Bytes: 1 << 31, PartitionErrors: 812, CPU: &CPU{PID: 4711},
		Stages: map[string]Histogram{}, Kernel: map[string]uint64{"ListenOverflows": 0, "ListenDrops": 0, "TCPSynRetrans": 0},
	}
	for _, name := range stageOrder {
		s.Stages[name] = NewHistogram(RunDigits)
	}
	record := func(h Histogram, micros float64) { _ = h.RecordValue(int64(micros * 1000)) }
	for i := range seconds {
		w := Window{At: float64(i), Seconds: 1, Latency: NewHistogram(WindowDigits), Classes: map[string]uint64{}, Open: 40 + rng.IntN(30), Kernel: map[string]uint64{}}
		slow, lost := 1.0, 0.0
		switch {
		case i >= 30 && i < 36:
			slow, lost = 6, 0.03
		case i >= 70 && i < 73:
			slow, lost = 25, 0.08
			w.Kernel["ListenOverflows"] = uint64(20 + rng.IntN(60))
			w.Kernel["TCPSynRetrans"] = uint64(40 + rng.IntN(60))
		}
		n := 1980 + rng.IntN(40)
		w.Intended = uint64(2000)
		for range n {
			w.Started++
			if rng.Float64() < lost {
				w.Failed++
				w.Classes[[]string{"refused", "reset", "reset", "timeout"}[rng.IntN(4)]]++
				continue
			}
			w.Done++
			connect, asked, meta := 60+rng.ExpFloat64()*30, 45+rng.ExpFloat64()*30, 130+rng.ExpFloat64()*90*slow
			total := (connect + asked + meta) * math.Exp(0.25*rng.NormFloat64()) * factor
			record(s.Stages[StageConnect], connect)
			record(s.Stages[StageAPIVersions], asked)
			record(s.Stages[StageMetadata], meta)
			record(s.Stages[StageOperation], total)
			record(w.Latency, total)
			record(s.Stages[StageLag], 4+rng.ExpFloat64()*6)
			record(s.Stages[StagePoll], 2+rng.ExpFloat64()*4)
		}
		w.CPU = float64(w.Done) * (31*factor + rng.Float64()*4 + slow/3) * 1e-6
		s.CPU.Seconds += w.CPU
		s.Counts.add(w.Counts)
		addCounters(s.Kernel, w.Kernel)
		s.Windows = append(s.Windows, w)
	}
	for i, class := range []string{"reset", "refused", "timeout"} {
		f := Failure{Class: class, Examples: []string{[]string{"read from 127.0.0.1:9092: connection reset by peer", "connect to 127.0.0.1:9092: connection refused", "no whole answer within 5s"}[i]}}
		for _, w := range s.Windows {
			f.Count += w.Classes[class]
		}
		s.Failures = append(s.Failures, f)
	}
	cal := Side{Target: "127.0.0.1:31999", Name: "floor", Elapsed: 5, Stages: map[string]Histogram{StageOperation: NewHistogram(RunDigits), StageLag: NewHistogram(RunDigits)}}
	for range 10000 {
		cal.Done++
		record(cal.Stages[StageOperation], 90+rng.ExpFloat64()*25)
		record(cal.Stages[StageLag], 4+rng.ExpFloat64()*5)
	}
	r := &Run{
		Schema: Schema, Scenario: "storm", Loop: LoopOpen, Arrival: "poisson:2000/s", Seed: 42, Clients: 5000, Generators: 1,
		Start: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Duration: seconds, Sides: []Side{s}, Calibration: &cal,
		Settings: []Setting{{"target", "127.0.0.1:9092"}, {"scenario", "storm"}, {"arrival", "poisson:2000/s"}, {"clients", "5000"}, {"loops", "1"}, {"warmup", "5s"},
			{"duration", "2m0s"}, {"timeout", "5s"}, {"metadata-version", "12"}, {"topics", "all"}, {"seed", "42"}},
		Environment: Environment{Host: "lab-1", Kernel: "Linux 6.1.0 x86_64", CPUs: 2, Go: "go1.26", Version: "v0.2.0", Limits: []Setting{{"nofile", "20000"}, {"ip_local_port_range", "32768 60999"}, {"somaxconn", "4096"}}},
		Events: []Event{
			{At: 30, Took: 0.02, Name: "kill broker 2", Detail: "kill -9 4713"}, {At: 36, Took: 4, Name: "restart broker 2", Detail: "POST /nodes/2/restart: 200"},
			{At: 70, Name: "elect all preferred leaders"}, {At: 72.5, Name: "reassign all partitions", Error: "exit status 1"}, {At: 105, Name: "scale to 4 brokers", Detail: "lab add-node --rack d"},
		},
	}
	all, err := ParseAssertions("p99<5ms,failed_share<1%,rate>=1900,lag_p99<0.5ms,failed=0")
	if err != nil {
		panic(fmt.Sprint("the sample's own assertions: ", err))
	}
	all.Evaluate(r)
	return r
}
