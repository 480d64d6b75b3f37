package backends

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/wire"
)

const (
	// maxOpinions bounds how many brokers are heard when one is doubted: most of that many speak for the cluster.
	maxOpinions = 5
	// maxAsks bounds the brokers that one round asks, failures included.
	maxAsks = 8
	// adoptRound is the round of doubt in which what most brokers say is believed.
	adoptRound = 3
)

// plan is what one refresh round works from. Nobody writes to it while the round runs.
type plan struct {
	// askees are the brokers that may be asked, in order.
	askees []askee
	// cur is the view so far, nil before the first; retired are topic ids that are over.
	cur     *snapshot.Snapshot
	retired *snapshot.Retired
	// doubted is the number of rounds before this one in which most brokers spoke against cur.
	doubted int
	// overlap caps the versions asked for, so that the view does not depend on which broker is asked.
	overlap *snapshot.APIs
	// kraft says which kind of cluster it is, whichever broker is asked.
	kraft bool
	rules snapshot.Rules
	// timeout bounds what one broker may take.
	timeout time.Duration
}

type askee struct {
	addr string
	apis *snapshot.APIs
}

// outcome is what a round found out.
type outcome struct {
	// accepted is the new view, nil when cur stays.
	accepted *snapshot.Snapshot
	// confirmed is when the answer was asked for that confirmed cur, replaced it, or was refused for a reason; 0 when
	// no broker answered.
	confirmed snapshot.Time
	// broker gave that answer, in that time.
	broker string
	took   time.Duration
	// tables are those of brokers that the new view lists and cur did not, by node id.
	tables map[int32]*snapshot.APIs
	// doubted goes into the next plan. held says that the view was not accepted for a broker whose versions are unknown.
	doubted  int
	held     bool
	rejected []rejection
	failed   []failure
}

type rejection struct {
	broker string
	fault  *snapshot.Fault
}

type failure struct {
	broker string
	err    error
}

// opinion is what one broker said in answer to a doubt; without doubts it confirms the view so far.
type opinion struct {
	broker string
	cand   *snapshot.Candidate
	doubts []snapshot.Doubt
	asked  snapshot.Time
	took   time.Duration
}

// refresher asks brokers. Its rounds follow one another, so its fields need no lock.
type refresher struct {
	now func() snapshot.Time
	// send sends a frame and returns the answer, in buf if it fits.
	send   func(ctx context.Context, addr string, frame, buf []byte) ([]byte, error)
	reader snapshot.Reader
	// metadata and described are where answers are read into: megabytes, twice a second.
	metadata, described []byte
}

// round asks brokers, one at a time, until one confirms the view so far or gives a better one. A candidate that is
// refused or doubted makes it ask the next at once.
func (r *refresher) round(ctx context.Context, p plan) (o outcome) {
	o = outcome{doubted: p.doubted}
	var opinions []opinion
	anyDoubt := p.doubted > 0
	for i, a := range p.askees {
		if i == maxAsks || len(opinions) == maxOpinions || ctx.Err() != nil {
			break
		}
		op, fault, err := r.hear(ctx, p, a)
		switch {
		case err != nil:
			o.failed = append(o.failed, failure{a.addr, err})
			continue
		case fault != nil:
			o.rejected = append(o.rejected, rejection{a.addr, fault})
			o.confirm(op)
			continue
		case op.cand != nil && len(op.doubts) == 0:
			o.accept(op)
			return o
		}
		opinions = append(opinions, op)
		if anyDoubt = anyDoubt || len(op.doubts) > 0; !anyDoubt {
			o.confirm(op)
			return o
		}
	}
	if len(opinions) > 0 {
		o.decide(p, opinions)
	}
	return o
}

// decide weighs opinions of which at least one is doubted, or was in the round before.
func (o *outcome) decide(p plan, opinions []opinion) {
	var best *opinion
	agree := 0
	for i := range opinions {
		n := 0
		for j := range opinions {
			if len(opinions[i].doubts) > 0 && snapshot.Agrees(opinions[i].doubts, opinions[j].doubts) {
				n++
			}
		}
		if n > agree {
			best, agree = &opinions[i], n
		}
	}
	if best == nil {
		o.confirm(opinions[0])
		o.doubted = 0
		return
	}
	most := 2*agree > len(opinions)
	// What all of several brokers say at once is believed at once, unless it is a thing that cannot be.
	all := agree == len(opinions) && agree > 1 && !slices.ContainsFunc(best.doubts, func(d snapshot.Doubt) bool {
		return d.Reason == snapshot.TopicIDBack
	})
	if all || most && p.doubted+1 >= adoptRound {
		o.accept(*best)
		return
	}
	o.doubted = 0
	if most {
		o.doubted = p.doubted + 1
	}
	first := best.doubts[0]
	o.rejected = append(o.rejected, rejection{best.broker, &snapshot.Fault{
		Reason: first.Reason,
		Detail: fmt.Sprintf("%v, one of %d doubts, shared by %d of %d brokers", first, len(best.doubts), agree, len(opinions)),
	}})
	o.confirm(*best)
}

func (o *outcome) accept(op opinion) {
	o.confirm(op)
	o.accepted, o.doubted = op.cand.Snapshot, 0
}

// hold refuses for now what was accepted: it lists brokers that have not told yet what they serve, and ApiVersions has to
// be true of a broker before it is handed out.
func (o *outcome) hold(silent []string) {
	o.accepted, o.held = nil, true
	o.rejected = append(o.rejected, rejection{o.broker, &snapshot.Fault{
		Reason: snapshot.UnknownVersions, Detail: "not known yet is what these new brokers serve: " + few(silent),
	}})
}

func (o *outcome) confirm(op opinion) {
	o.confirmed, o.broker, o.took = op.asked, op.broker, op.took
}

// hear asks one broker and compares what it says with the view so far. An opinion without a candidate says the same.
func (r *refresher) hear(ctx context.Context, p plan, a askee) (op opinion, fault *snapshot.Fault, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	op = opinion{broker: a.addr, asked: r.now()}
	defer func() { op.took = r.now().Sub(op.asked) }()
	req, desc, err := requests(p, a)
	if err != nil {
		return op, nil, err
	}
	meta, err := r.ask(ctx, a.addr, req, &r.metadata)
	if err != nil {
		return op, nil, err
	}
	var described *snapshot.Encoded
	if desc != nil {
		if described, err = r.ask(ctx, a.addr, desc, &r.described); err != nil {
			return op, nil, err
		}
	}
	cand, fault := r.reader.Read(*meta, described, p.kraft, p.cur, p.rules)
	if fault != nil {
		return op, fault, nil
	}
	if p.cur == nil || !snapshot.Same(p.cur, cand.Snapshot) {
		op.cand, op.doubts = cand, snapshot.Doubts(p.cur, cand, p.retired)
	}
	return op, nil, nil
}

// ask sends one request and returns the answer, which is read into buf, made larger if need be.
func (r *refresher) ask(ctx context.Context, addr string, req kmsg.Request, buf *[]byte) (*snapshot.Encoded, error) {
	body, err := exchange(ctx, func(ctx context.Context, frame []byte) ([]byte, error) {
		answer, err := r.send(ctx, addr, frame, *buf)
		if err == nil {
			*buf = answer[:0]
		}
		return answer, err
	}, req)
	return &snapshot.Encoded{Version: req.GetVersion(), Body: body}, err
}

// requests returns the Metadata request, and the DescribeCluster request or nil where the pool has none.
func requests(p plan, a askee) (*kmsg.MetadataRequest, *kmsg.DescribeClusterRequest, error) {
	meta := kmsg.NewPtrMetadataRequest()
	v, ok := versionFor(p, a, wire.KeyMetadata)
	if !ok {
		return nil, nil, errors.New("no version of Metadata is known to both")
	}
	meta.Version = v
	meta.Topics = nil // all
	meta.AllowAutoTopicCreation = false
	v, ok = versionFor(p, a, wire.KeyDescribeCluster)
	if !ok {
		return meta, nil, nil
	}
	desc := kmsg.NewPtrDescribeClusterRequest()
	desc.Version = v
	desc.IncludeFencedBrokers = true
	return meta, desc, nil
}

// versionFor is the highest version of a request that the broker, the pool as a whole and kvip know.
func versionFor(p plan, a askee, key int16) (int16, bool) {
	lo, hi := int16(0), answer.Keys[key]
	if key == wire.KeyMetadata {
		lo = 2 // the first with a cluster id
	}
	for _, t := range []*snapshot.APIs{a.apis, p.overlap} {
		if t == nil {
			continue
		}
		tlo, thi, ok := t.Range(key)
		if !ok {
			return 0, false
		}
		lo, hi = max(lo, tlo), min(hi, thi)
	}
	return hi, lo <= hi
}
