package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Bounds of every histogram of a run, in nanoseconds.
const (
	LowestNanos  = int64(1)
	HighestNanos = int64(time.Hour)
)

// Digits of histograms: of a whole run or round, and of a window, of which there are many.
const (
	RunDigits    = 3
	WindowDigits = 2
)

// Histogram is an HdrHistogram of nanoseconds that is kept whole in JSON: its "hdr" is HdrHistogram's V2 compressed
// encoding in base64, which every implementation reads; the figures beside it are for people and jq, and are not read back.
// The zero value is an empty one that takes no values.
type Histogram struct{ *hdrhistogram.Histogram }

// NewHistogram returns an empty histogram with the bounds of a run's.
func NewHistogram(digits int) Histogram {
	return Histogram{hdrhistogram.New(LowestNanos, HighestNanos, digits)}
}

// Count is how many values it holds.
func (h Histogram) Count() int64 {
	if h.Histogram == nil {
		return 0
	}
	return h.TotalCount()
}

// At is the value at a percentile, 0 to 100; 0 when the histogram is empty.
func (h Histogram) At(percentile float64) time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return time.Duration(h.ValueAtPercentile(percentile))
}

// Highest is the highest value, to its digits.
func (h Histogram) Highest() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return time.Duration(h.Max())
}

// Add adds all values of other. An error says that some did not fit, or would not keep their digits; h is then unchanged.
func (h *Histogram) Add(other Histogram) error {
	if other.Histogram == nil {
		return nil
	}
	if h.Histogram == nil {
		h.Histogram = other.Clone()
		return nil
	}
	if h.SignificantFigures() != other.SignificantFigures() || h.LowestTrackableValue() != other.LowestTrackableValue() {
		return fmt.Errorf("a histogram of %d digits from %d ns cannot take one of %d digits from %d ns without loss: write both with the same release",
			h.SignificantFigures(), h.LowestTrackableValue(), other.SignificantFigures(), other.LowestTrackableValue())
	}
	if other.HighestTrackableValue() > h.HighestTrackableValue() {
		wider := other.Clone()
		if dropped := wider.Merge(h.Histogram); dropped > 0 {
			return fmt.Errorf("%d values do not fit into the sum of two histograms", dropped)
		}
		h.Histogram = wider
		return nil
	}
	sum := h.Clone()
	if dropped := sum.Merge(other.Histogram); dropped > 0 {
		return fmt.Errorf("%d values do not fit into the sum of two histograms", dropped)
	}
	h.Histogram = sum
	return nil
}

// jsonHistogram is the form in JSON.
type jsonHistogram struct {
	Count int64  `json:"count"`
	P50   int64  `json:"p50_ns,omitempty"`
	P90   int64  `json:"p90_ns,omitempty"`
	P99   int64  `json:"p99_ns,omitempty"`
	P999  int64  `json:"p999_ns,omitempty"`
	Max   int64  `json:"max_ns,omitempty"`
	HDR   string `json:"hdr,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (h Histogram) MarshalJSON() ([]byte, error) {
	if h.Histogram == nil {
		return json.Marshal(jsonHistogram{})
	}
	hdr, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("histogram: %w", err)
	}
	return json.Marshal(jsonHistogram{
		Count: h.Count(), P50: int64(h.At(50)), P90: int64(h.At(90)), P99: int64(h.At(99)), P999: int64(h.At(99.9)),
		Max: int64(h.Highest()), HDR: string(hdr),
	})
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Histogram) UnmarshalJSON(b []byte) error {
	var j jsonHistogram
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("histogram: %w", err)
	}
	h.Histogram = nil
	if j.HDR == "" {
		if j.Count != 0 {
			return fmt.Errorf("histogram of %d values without \"hdr\", which holds them", j.Count)
		}
		return nil
	}
	decoded, err := hdrhistogram.Decode([]byte(j.HDR))
	if err != nil {
		return fmt.Errorf("histogram: %w", err)
	}
	if decoded.TotalCount() != j.Count {
		return fmt.Errorf("histogram: \"hdr\" holds %d values, \"count\" says %d: the file was changed", decoded.TotalCount(), j.Count)
	}
	h.Histogram = decoded
	return nil
}

// WriteHGRM writes the percentile distribution in milliseconds, as HdrHistogram's plotters read it.
func (h Histogram) WriteHGRM(w io.Writer) error {
	if h.Histogram == nil {
		h = NewHistogram(RunDigits)
	}
	const ticksPerHalfDistance = 5 // as HdrHistogram's own tools
	_, err := h.PercentilesPrint(w, ticksPerHalfDistance, float64(time.Millisecond))
	return err
}
