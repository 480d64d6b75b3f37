package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/kvip/kvip/loadtest/cputime"
	"github.com/kvip/kvip/loadtest/floor"
	"github.com/kvip/kvip/loadtest/kafka"
	"github.com/kvip/kvip/loadtest/schedule"
)

const (
	bigTopics, bigPartitions = 10_000, 10
	fewTopics                = 60 // 600 partitions, as many in each topic
	allClients               = 8  // of an answer of megabytes: more would measure the kernel's buffers
)

// bigCPU is what answers cost at 100,000 partitions: all topics beside the same bytes sent raw, by the floor and by the
// stub, which writes ready bytes from a goroutine; and one topic beside a cluster of 600 partitions.
func bigCPU(ctx context.Context, r *bigRun) error {
	large, kvip, err := r.large(ctx, "")
	if err != nil {
		return err
	}
	small, err := r.stub(ctx, "stub-600", 3, fewTopics, bigPartitions)
	if err != nil {
		return err
	}
	little, err := r.gateway(ctx, "kvip-600", small, "", "")
	if err != nil {
		return err
	}
	bare, err := r.floorOf(ctx, large.addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "all topics: %d bytes, one topic: %d bytes\n", len(r.stand.answers[1].Response), len(r.stand.answers[2].Response))
	cells, err := r.rounds(ctx,
		namedLoad{"all kvip", kvip.target, r.load(kvip.target, true, allClients)},
		namedLoad{"all floor", bare, r.load(bare, true, allClients)},
		namedLoad{"all raw", large.target, r.load(large.target, true, allClients)},
		namedLoad{"one kvip", kvip.target, r.load(kvip.target, false, r.o.Clients)},
		namedLoad{"one kvip 600", little.target, r.load(little.target, false, r.o.Clients)},
		namedLoad{"one floor", bare, r.load(bare, false, r.o.Clients)},
	)
	if err != nil {
		return err
	}
	cpu := map[string][]float64{}
	for name, cs := range cells {
		cpu[name] = pluck(cs, cpuOf)
	}
	// Refreshes go on whatever clients do; where answers take milliseconds they are a part of the sum.
	var idle []float64
	for range r.o.Rounds {
		used, err := cores(ctx, time.Second, kvip.target)
		if err != nil {
			return err
		}
		idle = append(idle, used...)
	}
	r.say("kvip without clients", "% of a core", 0, times(idle, 100)...)
	own := pluck(cells["all kvip"], func(c cell) float64 { return c.CPUMicros - spreadOf(idle).Median*1e6/c.Rate })
	r.say("all topics, kvip, all that it used", "us", 0, cpu["all kvip"]...)
	r.say("all topics, kvip, less what it uses without clients", "us", 0, own...)
	r.say("all topics, floor", "us", 0, cpu["all floor"]...)
	r.say("all topics, raw writes", "us", 0, cpu["all raw"]...)
	r.say("all topics, kvip / raw writes", "", 1.3, over(own, cpu["all raw"])...)
	r.say("all topics, kvip / floor", "", 1.3, over(own, cpu["all floor"])...)
	r.say("one topic, kvip", "us", 0, cpu["one kvip"]...)
	r.say("one topic, kvip at 100,000 / at 600 partitions", "", 1.1, over(cpu["one kvip"], cpu["one kvip 600"])...)
	r.say("one topic, kvip / floor", "", 1.15, over(cpu["one kvip"], cpu["one floor"])...)
	return nil
}

// bigRefresh is what refreshes of 100,000 partitions, 0.1% of them changed in each, do to lookups, and what they cost.
func bigRefresh(ctx context.Context, r *bigRun) error {
	large, kvip, err := r.large(ctx, "")
	if err != nil {
		return err
	}
	cfg := r.load(kvip.target, false, 32)
	if cfg.Rate, err = schedule.Parse("300", 5*time.Second); err != nil {
		return err
	}
	cfg.Duration = 5 * time.Second
	var quiet, churned []cell
	var pausesP, pausesM []float64
	for range r.o.Rounds {
		q, err := loadCell(ctx, "quiet", kvip.target, cfg)
		if err != nil {
			return err
		}
		stop := large.churn(ctx, 200*time.Millisecond)
		c, err := loadCell(ctx, "churned", kvip.target, cfg)
		stop()
		if err != nil {
			return err
		}
		quiet, churned = append(quiet, q), append(churned, c)
		pausesP = append(pausesP, (c.P999Micros-q.P999Micros)/1e3)
		pausesM = append(pausesM, (c.MaxMicros-q.MaxMicros)/1e3)
	}
	ms := func(f func(cell) float64) func(cell) float64 { return func(c cell) float64 { return f(c) / 1e3 } }
	p99, p999, most := ms(func(c cell) float64 { return c.P99Micros }), ms(func(c cell) float64 { return c.P999Micros }), ms(func(c cell) float64 { return c.MaxMicros })
	r.say("one topic at 300/s, nothing changes: p99", "ms", 0, pluck(quiet, p99)...)
	r.say("one topic at 300/s, nothing changes: p99.9", "ms", 0, pluck(quiet, p999)...)
	r.say("one topic at 300/s, nothing changes: max", "ms", 0, pluck(quiet, most)...)
	r.say("one topic at 300/s, 0.1% changes in each refresh: p99", "ms", 0, pluck(churned, p99)...)
	r.say("one topic at 300/s, 0.1% changes in each refresh: p99.9", "ms", 0, pluck(churned, p999)...)
	r.say("one topic at 300/s, 0.1% changes in each refresh: max", "ms", 0, pluck(churned, most)...)
	r.say("what refreshes add to p99.9", "ms", 5, pausesP...)
	r.say("what refreshes add to the longest", "ms", 5, pausesM...)
	var still, moving, costs []float64
	for range r.o.Rounds {
		cores, _, err := kvip.alone(ctx)
		if err != nil {
			return err
		}
		stop := large.churn(ctx, 200*time.Millisecond)
		changing, views, err := kvip.alone(ctx)
		stop()
		if err != nil {
			return err
		}
		still, moving, costs = append(still, cores*100), append(moving, changing*100), append(costs, changing/views*1e3)
	}
	r.say("kvip without clients, nothing changes", "% of a core", 0, still...)
	r.say("kvip without clients, 0.1% changes in each refresh", "% of a core", 0, moving...)
	r.say("all its CPU for each view accepted, fetching and probes included", "ms", 0, costs...)
	return nil
}

// alone measures a kvip that has no clients for a while: the share of a core that it uses, and the views a second that it
// accepts.
func (g *gateway) alone(ctx context.Context) (used, views float64, err error) {
	const during = 4 * time.Second
	before, err := g.generation(ctx)
	if err != nil {
		return 0, 0, err
	}
	all, err := cores(ctx, during, g.target)
	if err != nil {
		return 0, 0, err
	}
	after, err := g.generation(ctx)
	return all[0], (after - before) / during.Seconds(), err
}

// families are versions of Metadata of which each encodes topics in a way of its own.
var families = []int16{12, 1, 5, 7, 8, 9}

// bigMemory is what 100,000 partitions take, with one and with several families of versions in use.
func bigMemory(ctx context.Context, r *bigRun) error {
	large, kvip, err := r.large(ctx, "")
	if err != nil {
		return err
	}
	encoded := 0.0
	for n := range families {
		frame, err := floor.Ask(ctx, kvip.addr, kafka.MetadataRequest(families[n], "bench", kafka.Lookup{All: true}))
		if err != nil {
			return err
		}
		encoded += float64(len(frame))
		if n != 0 && n != len(families)-1 {
			continue
		}
		for _, churned := range []bool{false, true} {
			stop := func() {}
			if churned {
				stop = large.churn(ctx, 200*time.Millisecond)
			}
			sizes, err := kvip.sizes(ctx)
			stop()
			if err != nil {
				return err
			}
			what := "nothing changes"
			if churned {
				what = "0.1% changes in each refresh"
			}
			r.say(fmt.Sprintf("resident, %d families (%.1f MB encoded), %s", n+1, encoded/(1<<20), what), "MiB", 2.5*encoded/(1<<20)+50, sizes...)
		}
	}
	return nil
}

// sizes are the resident memory in MiB, every half second for 10 s.
func (g *gateway) sizes(ctx context.Context) (mib []float64, err error) {
	for range 20 {
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return nil, err
		}
		rss, err := resident(g.pid)
		if err != nil {
			return nil, err
		}
		mib = append(mib, rss/(1<<20))
	}
	return mib, nil
}

// bigMillion is a cluster of 1,000,000 partitions.
func bigMillion(ctx context.Context, r *bigRun) error {
	huge, err := r.stub(ctx, "stub-1M", 3, 10*bigTopics, bigPartitions)
	if err != nil {
		return err
	}
	kvip, err := r.gateway(ctx, "kvip-1M", huge, "", "")
	if err != nil {
		return err
	}
	r.say("1,000,000 partitions: from start to ready", "s", 0, kvip.took.Seconds())
	bare, err := r.floorOf(ctx, huge.addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "all topics: %d bytes\n", len(r.stand.answers[1].Response))
	began := time.Now()
	frame, err := floor.Ask(ctx, kvip.addr, kafka.MetadataRequest(12, "bench", kafka.Lookup{All: true}))
	if err != nil {
		return err
	}
	r.say("1,000,000 partitions: first answer of a version", "s", 0, time.Since(began).Seconds())
	all, err := r.readers(ctx, []string{"--fleet-read", "10"}, 11, kvip.target, huge.target, bare)
	if err != nil {
		return err
	}
	one, err := r.readers(ctx, []string{"--fleet-read", "20000", "--fleet-one"}, 20001, kvip.target, bare)
	if err != nil {
		return err
	}
	r.say("1,000,000 partitions: all topics, kvip", "us", 0, all[0]...)
	r.say("1,000,000 partitions: all topics, kvip / raw writes", "", 1.3, over(all[0], all[1])...)
	r.say("1,000,000 partitions: all topics, kvip / floor", "", 1.3, over(all[0], all[2])...)
	r.say("1,000,000 partitions: one topic, kvip", "us", 0, one[0]...)
	r.say("1,000,000 partitions: one topic, kvip / floor", "", 0, over(one[0], one[1])...)
	for _, churned := range []bool{false, true} {
		stop := func() {}
		what := "nothing changes"
		if churned {
			stop = huge.churn(ctx, time.Second)
			what = "0.1% changes every second"
		}
		from, err := cputime.Of(kvip.pid)
		if err != nil {
			stop()
			return err
		}
		generation, _ := kvip.generation(ctx)
		sizes, err := kvip.sizes(ctx)
		if err != nil {
			stop()
			return err
		}
		to, err := cputime.Of(kvip.pid)
		stop()
		if err != nil {
			return err
		}
		after, _ := kvip.generation(ctx)
		r.say("1,000,000 partitions: resident, one family, "+what, "MiB", 2.5*float64(len(frame))/(1<<20)+50, sizes...)
		r.say("1,000,000 partitions: CPU without clients, "+what, "% of a core", 0, (to-from).Seconds()*10)
		r.say("1,000,000 partitions: snapshots accepted in 10 s, "+what, "", 0, after-generation)
	}
	return nil
}

// readers has one client after the other ask each target and not look at the answers, which for a list of thousands costs it
// more than the server. It returns each target's CPU per answer in us, less what it uses without clients.
func (r *bigRun) readers(ctx context.Context, args []string, answers int, targets ...target) ([][]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cpu := make([][]float64, len(targets))
	idle, err := cores(ctx, time.Second, targets...)
	if err != nil {
		return nil, err
	}
	for round := range r.o.Rounds + 1 {
		for i, t := range targets {
			from, err := cputime.Of(t.pid)
			if err != nil {
				return nil, err
			}
			began := time.Now()
			if out, err := exec.CommandContext(ctx, self, append([]string{"--fleet-target", t.addr}, args...)...).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("reader of %s: %w: %s", t.name, err, out)
			}
			took := time.Since(began)
			to, err := cputime.Of(t.pid)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				cpu[i] = append(cpu[i], ((to-from).Seconds()-idle[i]*took.Seconds())*1e6/float64(answers))
			}
		}
	}
	return cpu, nil
}

// bigBrokers is what a list of 2,000 brokers costs in every answer.
func bigBrokers(ctx context.Context, r *bigRun) error {
	const brokers = 2000
	many, err := r.stub(ctx, "stub-2000", brokers, 100, 6)
	if err != nil {
		return err
	}
	few, err := r.stub(ctx, "stub-3", 3, 100, 6)
	if err != nil {
		return err
	}
	wide, err := r.gateway(ctx, "kvip-2000", many, "", "")
	if err != nil {
		return err
	}
	narrow, err := r.gateway(ctx, "kvip-3", few, "", "")
	if err != nil {
		return err
	}
	bare, err := r.floorOf(ctx, many.addr)
	if err != nil {
		return err
	}
	for v := int16(1); v <= 13; v += 3 {
		frame, err := floor.Ask(ctx, wide.addr, kafka.MetadataRequest(v, "bench", bigLookups[1]))
		if err != nil {
			return err
		}
		r.say(fmt.Sprintf("2,000 brokers: an answer of one topic, v%d", v), "bytes", 0, float64(len(frame)))
	}
	cpu, err := r.readers(ctx, []string{"--fleet-read", "20000", "--fleet-one"}, 20001, wide.target, narrow.target, bare)
	if err != nil {
		return err
	}
	r.say("one topic, 2,000 brokers", "us", 0, cpu[0]...)
	r.say("one topic, 3 brokers", "us", 0, cpu[1]...)
	r.say("one topic, 2,000 brokers / 3 brokers", "", 0, over(cpu[0], cpu[1])...)
	r.say("one topic, 2,000 brokers, kvip / floor", "", 0, over(cpu[0], cpu[2])...)
	idle, err := cores(ctx, time.Second, wide.target)
	if err != nil {
		return err
	}
	rss, err := resident(wide.pid)
	if err != nil {
		return err
	}
	r.say("2,000 brokers: CPU without clients", "% of a core", 0, times(idle, 100)...)
	r.say("2,000 brokers: resident", "MiB", 0, rss/(1<<20))
	return nil
}
