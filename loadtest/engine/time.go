package engine

import "time"

// Time is a point on the process's monotonic clock, in nanoseconds since the process began.
type Time int64

// Never is later than every other Time.
const Never = Time(1<<63 - 1)

var started = time.Now()

// Now reads the clock.
func Now() Time { return Time(time.Since(started)) }

// Add returns t+d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
