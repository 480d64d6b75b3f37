package front

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/protocol/session"
)

// collector reads the loops' counters when Prometheus asks: a request costs two uncontended additions and no label lookup.
type collector struct {
	server                                             *Server
	conns, limit, buffered, closed, requests, duration *prometheus.Desc
}

func newCollector(s *Server) *collector {
	vip := prometheus.Labels{"vip": s.cfg.Name}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kvip_"+name, help, labels, vip)
	}
	return &collector{
		server:   s,
		conns:    desc("connections", "Open client connections."),
		limit:    desc("connections_limit", "Client connections that the descriptor limit leaves room for."),
		buffered: desc("buffered_bytes", "Bytes that clients have sent and that wait: halves of frames, and requests behind one in flight."),
		closed:   desc("connections_closed_total", "Client connections that ended, by reason.", "reason"),
		requests: desc("requests_total", "Client requests, by api, version and outcome.", "api", "version", "outcome"),
		duration: desc("request_duration_seconds", "From a request's arrival to its answer at the socket.", "api", "outcome"),
	}
}

// Describe implements prometheus.Collector.
func (m *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.conns, m.limit, m.buffered, m.closed, m.requests, m.duration} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *collector) Collect(ch chan<- prometheus.Metric) {
	s := m.server
	ch <- prometheus.MustNewConstMetric(m.conns, prometheus.GaugeValue, float64(s.conns.Load()))
	ch <- prometheus.MustNewConstMetric(m.limit, prometheus.GaugeValue, float64(s.most.Load()))
	ch <- prometheus.MustNewConstMetric(m.buffered, prometheus.GaugeValue, float64(s.buffered.Load()))
	for _, r := range session.Reasons() {
		ch <- prometheus.MustNewConstMetric(m.closed, prometheus.CounterValue, float64(s.closes[r].Load()), r.String())
	}
	m.collectRequests(ch)
	m.collectDurations(ch)
}

func (m *collector) stats(f func(*session.Stats)) {
	f(&m.server.finished)
	for _, l := range *m.server.loops.Load() {
		f(&l.stats)
	}
}

func (m *collector) collectRequests(ch chan<- prometheus.Metric) {
	type row struct {
		key, version int16
		outcome      session.Outcome
	}
	total := map[row]uint64{}
	m.stats(func(s *session.Stats) {
		s.Requests(func(key, version int16, o session.Outcome, n uint64) { total[row{key, version, o}] += n })
	})
	for r, n := range total {
		version := strconv.Itoa(int(r.version))
		if r.version == session.OtherVersion {
			version = "other"
		}
		ch <- prometheus.MustNewConstMetric(m.requests, prometheus.CounterValue, float64(n), apiName(r.key), version, r.outcome.String())
	}
}

func (m *collector) collectDurations(ch chan<- prometheus.Metric) {
	type row struct {
		key     int16
		outcome session.Outcome
	}
	type histogram struct {
		buckets map[float64]uint64
		count   uint64
		sum     float64
	}
	total := map[row]*histogram{}
	m.stats(func(s *session.Stats) {
		s.Durations(func(key int16, o session.Outcome, cumulative []uint64, sum float64) {
			h := total[row{key, o}]
			if h == nil {
				h = &histogram{buckets: map[float64]uint64{}}
				total[row{key, o}] = h
			}
			for i, bound := range session.DurationBounds {
				h.buckets[bound] += cumulative[i]
			}
			h.count += cumulative[len(cumulative)-1]
			h.sum += sum
		})
	})
	for r, h := range total {
		ch <- prometheus.MustNewConstHistogram(m.duration, h.count, h.sum, h.buckets, apiName(r.key), r.outcome.String())
	}
}

func apiName(key int16) string {
	if key == session.OtherKey {
		return "other"
	}
	return kmsg.NameForKey(key)
}
