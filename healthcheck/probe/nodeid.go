package probe

import (
	"context"
	"fmt"

	"github.com/kvip/kvip/healthcheck"
)

// nodeID is the check that the registry and the cluster mean the same broker by this address.
func nodeID(_ context.Context, v *visit) (healthcheck.Reason, string) {
	switch want, got := v.cfg.NodeID, v.res.NodeID; {
	case want < 0:
		return v.ok(func() string { return fmt.Sprintf("%d, the registry says none", got) })
	case got >= 0 && got != want:
		return ReasonWrongNode, fmt.Sprintf("its node id is %d, the registry says %d", got, want)
	default:
		return v.ok(func() string { return fmt.Sprint(got) })
	}
}
