package forward

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// OwnTimeout returns the timeout that a request names for itself, or without when its kind has none or it does not parse.
func OwnTimeout(key, version int16, body []byte, without time.Duration) time.Duration {
	req := kmsg.RequestForKey(key)
	timed, ok := req.(kmsg.TimeoutRequest)
	if !ok || version > req.MaxVersion() || len(body) > refuseLimit {
		return without
	}
	req.SetVersion(version)
	if req.ReadFrom(body) != nil {
		return without
	}
	return time.Duration(max(timed.Timeout(), 0)) * time.Millisecond
}
