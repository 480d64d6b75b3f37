package kafka

import "fmt"

// MaxAPIVersions is the newest ApiVersions version that this package knows.
const MaxAPIVersions = 5

// UnsupportedVersion is the error code with which a broker refuses an ApiVersions version, in a body of version 0.
const UnsupportedVersion = 35

// APIVersions is what an answer to an ApiVersions request says.
type APIVersions struct {
	ErrorCode      int16
	Keys           []KeyRange
	ThrottleMillis int32
	FeaturesEpoch  int64 // -1: not said
}

// KeyRange is the versions of one api key.
type KeyRange struct{ Key, Min, Max int16 }

// Decode reads the body that follows the response header, which is of version 0 at every version (KIP-511). A refusal
// (error 35) is read as version 0 whatever was asked. It reuses m's slices. Errors wrap ErrShort or ErrMalformed.
func (m *APIVersions) Decode(version int16, body []byte) error {
	if version < 0 || version > MaxAPIVersions {
		return fmt.Errorf("apiversions v%d: known are 0 to %d", version, MaxAPIVersions)
	}
	r := reader{b: body}
	m.ErrorCode, m.ThrottleMillis, m.FeaturesEpoch = r.int16(), 0, -1
	if m.ErrorCode == UnsupportedVersion {
		version = 0
	}
	flex := version >= 3
	m.Keys = m.Keys[:0]
	for n := r.count(flex, 6); n > 0 && r.err == nil; n-- {
		m.Keys = append(m.Keys, KeyRange{r.int16(), r.int16(), r.int16()})
		r.skipTags(flex)
	}
	if version >= 1 {
		m.ThrottleMillis = r.int32()
	}
	if flex {
		r.tags(func(tag int, value []byte) {
			if tag == 1 {
				v := reader{b: value}
				m.FeaturesEpoch = v.int64()
				if err := v.end(); err != nil {
					r.fail(err)
				}
			}
		})
	}
	if err := r.end(); err != nil {
		return fmt.Errorf("apiversions v%d: %w", version, err)
	}
	return nil
}

// Max returns the newest version of a key that both the answer and limit allow; ok is false when there is none.
func (m *APIVersions) Max(key, limit int16) (version int16, ok bool) {
	for _, k := range m.Keys {
		if k.Key == key {
			v := min(k.Max, limit)
			return v, v >= k.Min
		}
	}
	return 0, false
}
