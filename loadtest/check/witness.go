package check

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/kvip/kvip/loadtest/failure"
	"github.com/kvip/kvip/loadtest/kafka"
)

// witness asks one broker for the truth, over one connection as long as that holds.
type witness struct {
	truth    *Truth
	addr     string
	check    *Checker
	conn     net.Conn
	versions map[int16]int16 // by api key
	id       int32
	in       []byte
	// before is what the broker said of each group's coordinator when it was last asked.
	before map[string]said
}

// said is what a broker said when it was asked at that time.
type said struct {
	is    string
	asked time.Duration
}

func newWitness(t *Truth, addr string) *witness {
	return &witness{truth: t, addr: addr, check: New(Expect{TopicErrors: true, Facts: true, withoutEpochs: true}), before: map[string]said{}}
}

func (w *witness) run(ctx context.Context) {
	defer w.hangUp()
	tick := time.NewTicker(w.truth.cfg.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := w.ask(ctx); err != nil {
			w.hangUp() // it is down, or frozen: others speak
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (w *witness) hangUp() {
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
		clear(w.before) // what it says after a while is no change from one asking to the next
	}
}

// ask asks for everything once. An answer that no client could live on, as a starting broker's is, is not evidence.
func (w *witness) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := w.connect(ctx); err != nil {
		return err
	}
	limit, _ := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := w.conn.SetDeadline(limit); err != nil {
		return err
	}
	from := w.truth.cfg.Now()
	version := w.versions[kafka.KeyMetadata]
	body, err := w.exchange(kafka.KeyMetadata, version, kafka.MetadataRequest(version, w.truth.cfg.ClientID, kafka.Lookup{All: true}))
	if err != nil {
		return err
	}
	if v := w.check.Metadata(version, -1, body); v.Fault == failure.None {
		w.truth.note(v.facts, from, w.truth.cfg.Now())
	}
	return w.askForGroups()
}

// askForGroups asks for every group's coordinator, in one request where the version has room for several.
func (w *witness) askForGroups() error {
	version, known := w.versions[kafka.KeyFindCoordinator]
	if !known {
		return nil
	}
	batches := [][]string{w.truth.cfg.Groups}
	if version < 4 {
		batches = nil
		for _, g := range w.truth.cfg.Groups {
			batches = append(batches, []string{g})
		}
	}
	for _, groups := range batches {
		if len(groups) == 0 {
			continue
		}
		from := w.truth.cfg.Now()
		body, err := w.exchange(kafka.KeyFindCoordinator, version, kafka.FindCoordinatorRequest(version, w.truth.cfg.ClientID, groups...))
		if err != nil {
			return err
		}
		var m kafka.FindCoordinator
		if err := m.Decode(version, body); err != nil {
			return err
		}
		var facts []fact
		for _, c := range m.Coordinators {
			group := groups[0]
			if c.Key != nil {
				group = string(c.Key)
			}
			facts = append(facts, coordinatorFact(group, c))
		}
		w.heard(facts, from, w.truth.cfg.Now())
	}
	return nil
}

// heard notes what the broker said of groups, and which it says something else of than when it was last asked.
func (w *witness) heard(facts []fact, from, to time.Duration) {
	w.truth.note(facts, from, to)
	for _, f := range facts {
		if was, ok := w.before[f.of]; ok && was.is != f.is {
			w.truth.note([]fact{{f.of, changing}}, was.asked, to)
		}
		w.before[f.of] = said{f.is, from}
	}
}

// connect connects and asks which versions the broker knows, unless that has been done.
func (w *witness) connect(ctx context.Context) (err error) {
	if w.conn != nil {
		return nil
	}
	if w.conn, err = new(net.Dialer).DialContext(ctx, "tcp", w.addr); err != nil {
		w.conn = nil
		return err
	}
	limit, _ := ctx.Deadline()
	if err := w.conn.SetDeadline(limit); err != nil {
		return err
	}
	body, err := w.exchange(kafka.KeyAPIVersions, 0, kafka.APIVersionsRequest(0, w.truth.cfg.ClientID, kafka.Software{}))
	if err != nil {
		return err
	}
	var m kafka.APIVersions
	if err := m.Decode(0, body); err != nil {
		return err
	}
	w.versions = map[int16]int16{}
	for key, most := range asksWith {
		if version, ok := m.Max(key, most); ok {
			w.versions[key] = version
		}
	}
	if _, ok := w.versions[kafka.KeyMetadata]; !ok {
		return fmt.Errorf("%s: no version of Metadata is known to both", w.addr)
	}
	return nil
}

// maxFrame is the longest answer that is taken, in bytes: Kafka's own limit for a request.
const maxFrame = 100 << 20

// exchange sends a request and returns the answer's body, which is valid until the next exchange.
func (w *witness) exchange(key, version int16, frame []byte) ([]byte, error) {
	w.id++
	kafka.SetCorrelation(frame, w.id)
	if _, err := w.conn.Write(frame); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(w.conn, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxFrame {
		return nil, fmt.Errorf("%s: an answer of %d bytes", w.addr, size)
	}
	if int(size) > cap(w.in) {
		w.in = make([]byte, size)
	}
	w.in = w.in[:size]
	if _, err := io.ReadFull(w.conn, w.in); err != nil {
		return nil, err
	}
	id, body, err := kafka.Header(key, version, w.in)
	if err == nil && id != w.id {
		err = fmt.Errorf("%s: correlation id %d, expected %d", w.addr, id, w.id)
	}
	return body, err
}
