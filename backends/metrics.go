package backends

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvip/kvip/backends/snapshot"
)

// collector reads a pool's metrics when they are asked for, so that a broker that has left leaves no series behind.
type collector struct {
	p *Pool

	age, generation, refresh, rejected          *prometheus.Desc
	up, state, inflight                         *prometheus.Desc
	discovery, members, ready, waiting, upConns *prometheus.Desc
	shared, need, toFailing, share              *prometheus.Desc
}

func newCollector(p *Pool) *collector {
	pool := prometheus.Labels{"pool": p.cfg.Name}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, pool)
	}
	return &collector{
		p:          p,
		age:        desc("kvip_snapshot_age_seconds", "Time since a broker last confirmed the snapshot, or was refused for a reason. Absent before the first snapshot."),
		generation: desc("kvip_snapshot_generation", "Accepted snapshots since the start."),
		refresh:    desc("kvip_snapshot_refresh_seconds", "Time that the last answered refresh took."),
		rejected:   desc("kvip_snapshot_rejected_total", "Brokers' answers that were not taken over, by reason.", "reason"),
		up:         desc("kvip_backend_up", "1 when the member may be used: the registry lists it and its probe passes.", "broker"),
		state:      desc("kvip_backend_state", "1 for the state that the member is in.", "broker", "state"),
		inflight:   desc("kvip_backend_inflight", "Forwarded requests that wait for the member's answer.", "broker"),
		discovery:  desc("kvip_discovery_last_success_seconds", "Unix time of the last good read of the registry that was read longest ago, 0 before the first. A Consul without changes is read every 5 minutes, a static list once."),
		members:    desc("kvip_pool_members", "Members by state.", "state"),
		ready:      desc("kvip_pool_ready", "1 when a client could bootstrap from this pool."),
		waiting:    desc("kvip_forward_waiting", "Forwarded requests that wait for a connection to a broker."),
		upConns:    desc("kvip_forward_connections", "Open connections to brokers for forwarded requests."),
		shared:     desc("kvip_forward_shared_total", "Forwarded requests that shared the answer to an identical one in flight."),
		need:       desc("kvip_pool_in_need", "1 while fewer than half of the members pass their probes, so that those that do not are asked too, when the others have failed."),
		toFailing:  desc("kvip_forward_to_failing_total", "Forwarded requests that went to a broker whose probe fails, for want of a better one."),
		share:      desc("kvip_backend_share_ratio", "How much of its share of forwards the member gets: below 1 on trial, and for a while after a return.", "broker"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.age, c.generation, c.refresh, c.rejected, c.up, c.state, c.inflight, c.discovery, c.members, c.ready, c.waiting,
		c.upConns, c.shared, c.need, c.toFailing, c.share,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	v := c.p.view.Load()
	if v.snapshot != nil {
		gauge(c.age, c.p.age().Seconds())
		gauge(c.generation, float64(v.snapshot.Generation))
	}
	gauge(c.refresh, c.p.report.Load().refreshTook.Seconds())
	for i, r := range snapshot.Reasons {
		counter(c.rejected, float64(c.p.rejected[i].Load()), string(r))
	}
	count := map[State]int{}
	conns := 0
	for _, m := range v.members {
		s := m.status.Load()
		count[State(s.State)]++
		conns += c.p.forwardUp.Conns(m.addr)
		gauge(c.up, truth(s.Forwardable), m.addr)
		for _, state := range States {
			gauge(c.state, truth(s.State == string(state)), m.addr, string(state))
		}
		gauge(c.share, s.SharePercent/100, m.addr)
		gauge(c.inflight, float64(c.p.forwardUp.InFlight(m.addr)), m.addr)
	}
	for _, state := range States {
		gauge(c.members, float64(count[state]), string(state))
	}
	ready, _ := c.p.Ready()
	gauge(c.ready, truth(ready))
	gauge(c.discovery, c.lastSuccess())
	gauge(c.waiting, float64(c.p.forwardUp.Waiting()))
	gauge(c.upConns, float64(conns))
	counter(c.shared, float64(c.p.forwards.shared.Load()))
	counter(c.toFailing, float64(c.p.forwards.needed.Load()))
	gauge(c.need, truth(v.need))
}

// lastSuccess is that of the provider that succeeded longest ago: one that fails must not hide behind the others.
func (c *collector) lastSuccess() float64 {
	oldest := 0.0
	for i, d := range c.p.watcher.Status().Providers {
		t := 0.0
		if !d.LastSuccess.IsZero() {
			t = float64(d.LastSuccess.UnixMilli()) / 1000
		}
		if i == 0 || t < oldest {
			oldest = t
		}
	}
	return oldest
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
