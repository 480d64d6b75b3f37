package kafka

import "fmt"

// MaxFindCoordinator is the newest FindCoordinator version that this package knows.
const MaxFindCoordinator = 6

// batched is the first version that asks for several keys at once (KIP-699).
const batched = 4

// FindCoordinatorRequest returns a whole request frame for consumer groups. Versions below 4 have room for one.
func FindCoordinatorRequest(version int16, clientID string, groups ...string) []byte {
	flex := flexible(KeyFindCoordinator, version)
	w := begin(KeyFindCoordinator, version, clientID)
	if version < batched {
		w.string(flex, groups[0])
	}
	if version >= 1 {
		w.raw([]byte{0}) // key type: group
	}
	if version >= batched {
		w.count(flex, len(groups))
		for _, g := range groups {
			w.string(flex, g)
		}
	}
	w.tags(flex)
	return w.finish()
}

// FindCoordinator is what an answer to a FindCoordinator request says. Byte slices point into the decoded body.
type FindCoordinator struct {
	ThrottleMillis int32
	Coordinators   []Coordinator
}

// Coordinator is who coordinates one group. With an error code the node id is -1.
type Coordinator struct {
	Key       []byte // nil: before v4, which answer one key and do not repeat it
	NodeID    int32
	Host      []byte
	Port      int32
	ErrorCode int16
}

// Decode reads the body that follows the response header. It reuses m's slice. Errors wrap ErrShort or ErrMalformed.
func (m *FindCoordinator) Decode(version int16, body []byte) error {
	if version < 0 || version > MaxFindCoordinator {
		return fmt.Errorf("find coordinator v%d: known are 0 to %d", version, MaxFindCoordinator)
	}
	flex := flexible(KeyFindCoordinator, version)
	r := reader{b: body}
	m.ThrottleMillis, m.Coordinators = 0, m.Coordinators[:0]
	if version >= 1 {
		m.ThrottleMillis = r.int32()
	}
	if version >= batched {
		for n := r.count(flex, 14); n > 0 && r.err == nil; n-- {
			c := Coordinator{Key: r.string(flex), NodeID: r.int32(), Host: r.string(flex), Port: r.int32(), ErrorCode: r.int16()}
			r.nullable(flex) // error message
			r.skipTags(flex)
			m.Coordinators = append(m.Coordinators, c)
		}
	} else {
		c := Coordinator{ErrorCode: r.int16()}
		if version >= 1 {
			r.nullable(flex) // error message
		}
		c.NodeID, c.Host, c.Port = r.int32(), r.string(flex), r.int32()
		m.Coordinators = append(m.Coordinators, c)
	}
	r.skipTags(flex)
	if err := r.end(); err != nil {
		return fmt.Errorf("find coordinator v%d: %w", version, err)
	}
	return nil
}
