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
	says   uint64
	// tables are those of brokers that the new view lists and cur did not, by node id.
	tables map[int32]*snapshot.APIs
	// doubted goes into the next plan.
	doubted  int
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
	says   uint64
	cand   *snapshot.Candidate
	doubts []snapshot.Doubt
	asked  snapshot.Time
	took   time.Duration
}

// refresher asks brokers. Its rounds follow one another, so its fields need no lock.
type refresher struct {
	now  func() snapshot.Time
	send func(ctx context.Context, addr string, frame []byte) ([]byte, error)
	// seen are the last answers by broker.
	seen map[string]seen
	// view is the number of what the view so far says, last the last number given.
	view, last uint64
}

// seen is how one broker's last answer is known again. It has the number of what that answer said, not the view itself,
// which it would keep in memory.
type seen struct {
	says                uint64
	metadata, described fingerprint
	metadataVersion     int16
	describedVersion    int16 // -1: not asked
}

// round asks brokers, one at a time, until one confirms the view so far or gives a better one. A candidate that is
// refused or doubted makes it ask the next at once.
func (r *refresher) round(ctx context.Context, p plan) (o outcome) {
	o = outcome{doubted: p.doubted}
	defer func() {
		if o.accepted != nil {
			r.view = o.says
		}
	}()
	r.forget(p.askees)
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
	o.accepted, o.says, o.doubted = op.cand.Snapshot, op.says, 0
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
	to := func(ctx context.Context, frame []byte) ([]byte, error) { return r.send(ctx, a.addr, frame) }

	req, desc, err := requests(p, a)
	if err != nil {
		return op, nil, err
	}
	body, err := exchange(ctx, to, req)
	if err != nil {
		return op, nil, err
	}
	var descBody []byte
	if desc != nil {
		if descBody, err = exchange(ctx, to, desc); err != nil {
			return op, nil, err
		}
	}
	if r.known(a.addr, p.cur, req, desc, body, descBody) {
		return op, nil, nil
	}
	delete(r.seen, a.addr)

	var meta kmsg.MetadataResponse
	if err := decode(body, req, &meta); err != nil {
		return op, &snapshot.Fault{Reason: snapshot.Malformed, Detail: err.Error()}, nil
	}
	var described *kmsg.DescribeClusterResponse
	if desc != nil {
		described = new(kmsg.DescribeClusterResponse)
		if err := decode(descBody, desc, described); err != nil {
			return op, &snapshot.Fault{Reason: snapshot.Malformed, Detail: err.Error()}, nil
		}
	}
	prints, printed := fingerprints(&meta, described, p.kraft, body, descBody)
	cand, fault := snapshot.Read(&meta, described, p.kraft, p.cur, p.rules)
	if fault != nil {
		return op, fault, nil
	}
	op.says = r.view
	if p.cur == nil || !snapshot.Same(p.cur, cand.Snapshot) {
		r.last++
		op.says, op.cand, op.doubts = r.last, cand, snapshot.Doubts(p.cur, cand, p.retired)
	}
	if printed {
		prints.says, prints.metadataVersion, prints.describedVersion = op.says, req.Version, -1
		if desc != nil {
			prints.describedVersion = desc.Version
		}
		r.seen[a.addr] = prints
	}
	return op, nil, nil
}

// forget drops what brokers said that are not asked any more.
func (r *refresher) forget(askees []askee) {
	if len(r.seen) <= len(askees) {
		return
	}
	asked := make(map[string]bool, len(askees))
	for _, a := range askees {
		asked[a.addr] = true
	}
	for addr := range r.seen {
		if !asked[addr] {
			delete(r.seen, addr)
		}
	}
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

// known says whether the answers of a broker are ones that are known to say what cur says.
func (r *refresher) known(addr string, cur *snapshot.Snapshot, req *kmsg.MetadataRequest, desc *kmsg.DescribeClusterRequest, body, descBody []byte) bool {
	s, ok := r.seen[addr]
	if !ok || cur == nil || s.says != r.view || s.metadataVersion != req.Version {
		return false
	}
	listed := func(id int32) bool { return cur.Broker(id) != nil }
	if desc == nil {
		return s.describedVersion < 0 && s.metadata.matches(body, listed)
	}
	// DescribeCluster's controller may be one that the list has only as fenced; any is fine, as kvip gives its own.
	return s.describedVersion == desc.Version && s.metadata.matches(body, listed) &&
		s.described.matches(descBody, func(int32) bool { return true })
}

func fingerprints(meta *kmsg.MetadataResponse, desc *kmsg.DescribeClusterResponse, kraft bool, body, descBody []byte) (s seen, ok bool) {
	s.metadata, ok = newFingerprint(body, kraft, func(controller int32) []byte {
		head := *meta
		head.Topics, head.ControllerID = nil, controller
		return head.AppendTo(nil)
	})
	if !ok || desc == nil {
		return s, ok
	}
	s.described, ok = newFingerprint(descBody, kraft, func(controller int32) []byte {
		head := *desc
		head.Brokers, head.ControllerID = nil, controller
		return head.AppendTo(nil)
	})
	return s, ok
}
