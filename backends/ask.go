package backends

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/protocol/wire"
)

// clientID is how kvip's own requests, refreshes and checks, name themselves to brokers.
const clientID = "kvip"

var formatter = kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID))

// send sends one frame to one broker and returns its answer.
type send func(ctx context.Context, frame []byte) ([]byte, error)

// exchange sends one of kvip's own requests, at the version set in it, and returns the encoded body of the answer.
func exchange(ctx context.Context, to send, req kmsg.Request) ([]byte, error) {
	frame, err := to(ctx, formatter.AppendRequest(nil, req, 0))
	if err != nil {
		return nil, err
	}
	body := frame[wire.ResponseCorrelationOffset+4:]
	if req.IsFlexible() {
		r := kbin.Reader{Src: body}
		kmsg.SkipTags(&r)
		if err := r.Complete(); err != nil {
			return nil, fmt.Errorf("answer to %s: header: %w", kmsg.NameForKey(req.Key()), err)
		}
		body = r.Src
	}
	return body, nil
}

// decode reads the body of the answer to req into resp.
func decode(body []byte, req kmsg.Request, resp kmsg.Response) error {
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return fmt.Errorf("answer to %s v%d: %w", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return nil
}

// checkCluster returns the check that each new forward connection has to pass before a client's request goes on it: an
// address that another cluster took over must not get one, not even before the next probe (field case BL-10).
func checkCluster(ctx context.Context, to send, clusterID string) error {
	const firstWithClusterID = 2 // Metadata v2 is also the newest that all brokers since 0.10.1 know
	req := kmsg.NewPtrMetadataRequest()
	req.Version = firstWithClusterID
	req.Topics = []kmsg.MetadataRequestTopic{}
	body, err := exchange(ctx, to, req)
	if err != nil {
		return err
	}
	var resp kmsg.MetadataResponse
	if err := decode(body, req, &resp); err != nil {
		return err
	}
	if resp.ClusterID == nil || *resp.ClusterID != clusterID {
		id := "none"
		if resp.ClusterID != nil {
			id = *resp.ClusterID
		}
		return fmt.Errorf("the broker's cluster id is %s, the pool's is %s", id, clusterID)
	}
	return nil
}
