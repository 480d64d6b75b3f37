package scenario

import (
	"fmt"

	"github.com/kvip/kvip/loadtest/check"
	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
)

// asks are the requests of one kind of client. A loop's clients share the frames: the correlation id is written before each
// sending.
type asks struct {
	apiVersions, metadata               []byte
	apiVersionsVersion, metadataVersion int16
	topics                              int // an answer must hold so many; -1: any number

	clientID string
	software kafka.Software
	lookup   kafka.Lookup
	lowered  map[[2]int16]*asks // for targets that serve less, by the versions of both requests
}

func newAsks(clientID string, sw kafka.Software, apiVersions, metadata int16, ask kafka.Lookup) *asks {
	a := &asks{
		apiVersionsVersion: apiVersions, metadataVersion: metadata, topics: len(ask.Topics),
		metadata: kafka.MetadataRequest(metadata, clientID, ask),
		clientID: clientID, software: sw, lookup: ask, lowered: map[[2]int16]*asks{},
	}
	if apiVersions >= 0 {
		a.apiVersions = kafka.APIVersionsRequest(apiVersions, clientID, sw)
	}
	if ask.All || (metadata == 0 && len(ask.Topics) == 0) {
		a.topics = -1
	}
	return a
}

// at returns the same requests in other versions.
func (a *asks) at(apiVersions, metadata int16) *asks {
	if apiVersions == a.apiVersionsVersion && metadata == a.metadataVersion {
		return a
	}
	versions := [2]int16{apiVersions, metadata}
	lower := a.lowered[versions]
	if lower == nil {
		lower = newAsks(a.clientID, a.software, apiVersions, metadata, a.lookup)
		lower.lowered = a.lowered
		a.lowered[versions] = lower
	}
	return lower
}

// negotiate returns what to ask of a target that has answered ApiVersions so, as clients do (KIP-35, KIP-511): again says
// that ApiVersions itself has to be asked once more, in the newest version that the refusal names, or in version 0.
func (a *asks) negotiate(said *kafka.APIVersions) (next *asks, again bool, err error) {
	if said.ErrorCode == kafka.UnsupportedVersion {
		version, _ := said.Max(kafka.KeyAPIVersions, kafka.MaxAPIVersions)
		if version >= a.apiVersionsVersion {
			return a, false, fmt.Errorf("ApiVersions v%d: error %d, and up to v%d is served", a.apiVersionsVersion, said.ErrorCode, version)
		}
		return a.at(version, a.metadataVersion), true, nil
	}
	version, ok := said.Max(kafka.KeyMetadata, a.metadataVersion)
	if !ok {
		return a, false, fmt.Errorf("ApiVersions v%d: no version of Metadata up to v%d is served", a.apiVersionsVersion, a.metadataVersion)
	}
	return a.at(a.apiVersionsVersion, version), false, nil
}

// greeted takes the answer to ApiVersions. When it has to be asked once more, a request is open afterwards.
func (l *line) greeted(version int16, r *check.Ranges) (failure.Class, string) {
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
		return failure.None, ""
	}
	l.shard.rec.Refuse()
	return l.askAPIVersions(), ""
}

// Exchange is called with each frame that the clients of a run send and that has an answer, and returns the answer: what
// they send depends on what the target serves. A frame of one kind of clients may come more than once.
func (c Config) Exchange(ask func(request []byte) (response []byte, err error)) error {
	all := []*asks{newAsks(c.ClientID, c.Software, c.APIVersionsVersion, c.MetadataVersion, c.Lookup)}
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
	for again := a.apiVersions != nil; again; {
		frame, err := ask(a.apiVersions)
		if err != nil {
			return err
		}
		var said kafka.APIVersions
		_, body, err := kafka.Header(kafka.KeyAPIVersions, a.apiVersionsVersion, frame)
		if err == nil {
			err = said.Decode(a.apiVersionsVersion, body)
		}
		if err == nil {
			a, again, err = a.negotiate(&said)
		}
		if err != nil {
			return err
		}
	}
	_, err := ask(a.metadata)
	return err
}
