package floor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// frameHead is the part of a request that the floor reads: length, api key, version, correlation id.
const frameHead = 4 + 2 + 2 + 4

// Answer is a ready response to one kind of request. The floor parses no body: where two requests of one key and version
// need different answers (all topics, one topic), their lengths tell them apart.
type Answer struct {
	Key     int16 `json:"key"`
	Version int16 `json:"version"`
	// RequestSize is the length of the request's frame without the 4 bytes of the length itself; 0 matches any.
	RequestSize int `json:"request_size,omitempty"`
	// Response is what follows a response frame's length: the correlation id (any value: it is overwritten), the rest of
	// the header and the body, as a broker sent them.
	Response []byte `json:"response"`
}

// Validate says what makes the answer unusable, nil when nothing does.
func (a Answer) Validate() error {
	switch {
	case len(a.Response) < 4:
		return fmt.Errorf("answer for key %d version %d: response has %d bytes, needs at least the correlation id's 4", a.Key, a.Version, len(a.Response))
	case a.RequestSize < 0:
		return fmt.Errorf("answer for key %d version %d: request_size %d is negative", a.Key, a.Version, a.RequestSize)
	}
	return nil
}

// ReadAnswers reads a JSON array of Answer (responses in base64, as encoding/json writes them).
func ReadAnswers(path string) ([]Answer, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var answers []Answer
	if err := json.Unmarshal(raw, &answers); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("%s: holds no answer", path)
	}
	return answers, nil
}

// ready is one event loop's own copy of an answer as a whole frame: the loop overwrites its correlation id in place, so a
// request costs no copy beyond the kernel's.
type ready struct {
	key, version int16
	size         int
	frame        []byte
}

func prepare(answers []Answer) ([]ready, error) {
	if len(answers) == 0 {
		return nil, errors.New("floor needs at least one answer")
	}
	out := make([]ready, 0, len(answers))
	for _, a := range answers {
		if err := a.Validate(); err != nil {
			return nil, err
		}
		frame := make([]byte, 4, 4+len(a.Response))
		binary.BigEndian.PutUint32(frame, uint32(len(a.Response)))
		out = append(out, ready{a.Key, a.Version, a.RequestSize, append(frame, a.Response...)})
	}
	return out, nil
}

// find returns the frame for a request, nil when none was given. A linear scan: there are a handful.
func find(answers []ready, key, version int16, size int) []byte {
	for i := range answers {
		a := &answers[i]
		if a.key == key && a.version == version && (a.size == 0 || a.size == size) {
			return a.frame
		}
	}
	return nil
}
