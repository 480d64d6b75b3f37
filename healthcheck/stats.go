package healthcheck

import (
	"math"
	"slices"
)

// smallPool is the number of members below which neither statistic can judge one of them.
const smallPool = 5

// iqrLimit is Q3 + 1.5 x (Q3 - Q1), with quartiles interpolated between values as most tools do (type 7 of Hyndman and
// Fan): what one member does hardly moves it, so it suits bursts. values are ascending, at least one.
func iqrLimit(values []float64) float64 {
	q1, q3 := quantile(values, 0.25), quantile(values, 0.75)
	return q3 + 1.5*(q3-q1)
}

// deviationLimit is the mean plus k standard deviations (of all members, not of a sample). One member of n can be at most
// (n-1)/sqrt(n) deviations away: at k = 1.9 a pool needs six members before any is beyond the limit.
func deviationLimit(values []float64, k float64) float64 {
	n := float64(len(values))
	mean := 0.0
	for _, v := range values {
		mean += v / n
	}
	variance := 0.0
	for _, v := range values {
		variance += (v - mean) * (v - mean) / n
	}
	return mean + k*math.Sqrt(variance)
}

// smallLimit is three times the median, of two values in the middle the lower one: of two members the better one sets the
// measure.
func smallLimit(values []float64) float64 { return 3 * values[(len(values)-1)/2] }

// quantile of ascending values, interpolated.
func quantile(values []float64, q float64) float64 {
	at := q * float64(len(values)-1)
	i := int(at)
	if i+1 >= len(values) {
		return values[len(values)-1]
	}
	return values[i] + (at-float64(i))*(values[i+1]-values[i])
}

// window holds the last values of a kind.
type window struct {
	values []float64 // oldest first from at, once full
	at     int
	// median and mean are of the values that are there.
	median, mean float64
}

func (w *window) reset() { *w = window{values: w.values[:0]} }

// add takes one more value, of which the window keeps size.
func (w *window) add(v float64, size int) {
	if len(w.values) < size {
		w.values = append(w.values, v)
	} else {
		w.values[w.at] = v
		w.at = (w.at + 1) % size
	}
	var room [32]float64
	sorted := append(room[:0], w.values...)
	slices.Sort(sorted)
	w.median = quantile(sorted, 0.5)
	w.mean = 0
	for _, v := range sorted {
		w.mean += v / float64(len(sorted))
	}
}
