package probe

import (
	"context"
	"fmt"

	"github.com/kvip/kvip/healthcheck"
)

// clusterID is the check that keeps a broker of another cluster out: its address may have belonged to this one.
func clusterID(_ context.Context, v *visit) (healthcheck.Reason, string) {
	switch want, got := v.cfg.ClusterID(), v.res.ClusterID; {
	case got == "":
		return healthcheck.OK, "the broker does not say"
	case want == "":
		return v.ok(func() string { return fmt.Sprintf("%.64q, the pool's is not known yet", got) })
	case got != want:
		return ReasonWrongCluster, fmt.Sprintf("its cluster id is %.64q, the pool's is %.64q", got, want)
	default:
		return v.ok(func() string { return fmt.Sprintf("%.64q", got) })
	}
}
