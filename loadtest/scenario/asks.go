package scenario

import (
	"fmt"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
)

// request is a request that clients of one kind send. A loop's clients share the frame: the correlation id is written
// before each sending.
type request struct {
	key, version int16
	frame        []byte
	topics       int                          // Metadata: an answer must hold so many; -1: any number
	group        string                       // FindCoordinator
	lower        func(version int16) *request // of one that is drawn: the same in another version
}

// asks are the requests of one kind of client.
type asks struct {
	apiVersions, metadata *request // apiVersions nil: it sends none
	draw                  *draw    // what a bootstrap asks for instead of metadata; nil: metadata

	clientID string
	software kafka.Software
	lookup   kafka.Lookup
	lowered  map[[2]int16]*asks // for targets that serve less, by the versions of both requests
}

func newAsks(clientID string, sw kafka.Software, apiVersions, metadata int16, ask kafka.Lookup) *asks {
	a := &asks{
		metadata: lookup(clientID, metadata, ask),
		clientID: clientID, software: sw, lookup: ask, lowered: map[[2]int16]*asks{},
	}
	if apiVersions >= 0 {
		a.apiVersions = &request{key: kafka.KeyAPIVersions, version: apiVersions, frame: kafka.APIVersionsRequest(apiVersions, clientID, sw)}
	}
	return a
}

func lookup(clientID string, version int16, ask kafka.Lookup) *request {
	r := &request{key: kafka.KeyMetadata, version: version, topics: len(ask.Topics), frame: kafka.MetadataRequest(version, clientID, ask)}
	if ask.All || (version == 0 && len(ask.Topics) == 0) {
		r.topics = -1
	}
	return r
}

// at returns the same requests in other versions.
func (a *asks) at(apiVersions, metadata int16) *asks {
	if apiVersions == a.apiVersions.version && metadata == a.metadata.version {
		return a
	}
	versions := [2]int16{apiVersions, metadata}
	lower := a.lowered[versions]
	if lower == nil {
		lower = newAsks(a.clientID, a.software, apiVersions, metadata, a.lookup)
		lower.lowered, lower.draw = a.lowered, a.draw
		a.lowered[versions] = lower
	}
	return lower
}

// negotiate returns what to ask of a target that has answered ApiVersions so, as clients do (KIP-35, KIP-511): again says
// that ApiVersions itself has to be asked once more, in the newest version that the refusal names, or in version 0.
func (a *asks) negotiate(said *kafka.APIVersions) (next *asks, again bool, err error) {
	if said.ErrorCode == kafka.UnsupportedVersion {
		version, _ := said.Max(kafka.KeyAPIVersions, kafka.MaxAPIVersions)
		if version >= a.apiVersions.version {
			return a, false, fmt.Errorf("ApiVersions v%d: error %d, and up to v%d is served", a.apiVersions.version, said.ErrorCode, version)
		}
		return a.at(version, a.metadata.version), true, nil
	}
	version, ok := said.Max(kafka.KeyMetadata, a.metadata.version)
	if !ok {
		return a, false, fmt.Errorf("ApiVersions v%d: no version of Metadata up to v%d is served", a.apiVersions.version, a.metadata.version)
	}
	return a.at(a.apiVersions.version, version), false, nil
}

// greeted takes the answer to ApiVersions. When it has to be asked once more, a request is open afterwards.
func (l *line) greeted(r *check.Ranges) (failure.Class, string) {
	refused := r.ErrorCode == kafka.UnsupportedVersion
	if r.Fault != failure.None && !refused {
		return r.Fault, r.Detail
	}
	next, again, err := l.asks.negotiate(&r.APIVersions)
	if err != nil {
		return failure.ErrorCode, err.Error()
	}
	l.asks = next
	if !again {
		l.serves = &r.APIVersions
		return failure.None, ""
	}
	l.shard.rec.Refuse()
	return l.askAPIVersions(), ""
}

// Exchange is called with each frame that the clients of a run send and that has an answer, and returns the answer: what
// they send depends on what the target serves. A frame of one kind of clients may come more than once.
func (c Config) Exchange(ask func(request []byte) (response []byte, err error)) error {
	all := []*asks{newAsks(c.ClientID, c.Software, c.APIVersionsVersion, c.MetadataVersion, c.Lookup)}
	all[0].draw = newDraw(&c)
	if Scenarios[c.Scenario].Paced {
		all = all[:0]
		for _, s := range c.Libraries {
			all = append(all, Libraries[s.Name].asks(&c))
		}
	}
	for _, a := range all {
		if err := a.exchange(ask); err != nil {
			return err
		}
	}
	for _, a := range assaults {
		if a.want == answer {
			_, _ = ask(a.bytes) // a target that does not answer is found by the hostile clients themselves
		}
	}
	return nil
}

func (a *asks) exchange(ask func([]byte) ([]byte, error)) error {
	var said kafka.APIVersions
	for again := a.apiVersions != nil; again; {
		frame, err := ask(a.apiVersions.frame)
		if err != nil {
			return err
		}
		_, body, err := kafka.Header(kafka.KeyAPIVersions, a.apiVersions.version, frame)
		if err == nil {
			err = said.Decode(a.apiVersions.version, body)
		}
		if err == nil {
			a, again, err = a.negotiate(&said)
		}
		if err != nil {
			return err
		}
	}
	_, err := ask(a.metadata.frame)
	if err != nil || a.draw == nil {
		return err
	}
	for _, r := range a.draw.all() {
		if r, err = a.draw.served(r, &said); err == nil {
			_, err = ask(r.frame)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
