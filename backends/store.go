package backends

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/discovery"
)

const (
	// stateVersion is raised when older files cannot be read any more; a file of another version is ignored.
	stateVersion = 2
	// maxState bounds what is read of a state file: a million partitions take some 50 MB.
	maxState = 256 << 20
)

// stateFile is the first line of the file; the checksum is of all that follows: a line with the state, and the bytes of its
// view, which would be half as many again within JSON and several times that in memory.
type stateFile struct {
	Version int    `json:"version"`
	SHA256  string `json:"sha256"`
}

// state is the last known good pool: who was in it, and what its cluster said.
type state struct {
	Pool      string               `json:"pool"`
	ClusterID string               `json:"cluster_id"`
	Saved     time.Time            `json:"saved"`
	Members   []discovery.Instance `json:"members"`
	APIs      []storedAPIs         `json:"apis"`
	View      *storedView          `json:"view,omitempty"`
}

// storedAPIs is a broker's table, as the bytes of an ApiVersions answer.
type storedAPIs struct {
	// Broker is the registered address, or "" of a broker that no registry lists.
	Broker   string `json:"broker,omitempty"`
	NodeID   int32  `json:"node_id"`
	Version  int16  `json:"version"`
	Response []byte `json:"response"`
}

// storedView is the snapshot, as the bytes of the answers that it would be read from; those of Metadata end the file.
type storedView struct {
	// Confirmed is when, by the wall clock, a broker last confirmed it.
	Confirmed time.Time `json:"confirmed"`
	KRaft     bool      `json:"kraft"`
	// Metadata is at MetadataVersion, DescribeCluster (if Described) at DescribedVersion.
	MetadataVersion  int16  `json:"metadata_version"`
	Described        bool   `json:"described"`
	DescribedVersion int16  `json:"described_version"`
	DescribeCluster  []byte `json:"describe_cluster,omitempty"`

	save   *snapshot.Snapshot // in one that is to be saved
	loaded []byte             // in one that was read: Metadata
}

// storeView makes a snapshot ready to be saved, at the newest versions, which hold all of it.
func storeView(s *snapshot.Snapshot, confirmed time.Time) *storedView {
	v := &storedView{
		Confirmed: confirmed, KRaft: s.KRaft, MetadataVersion: snapshot.WrittenVersion, Described: s.Described != nil, save: s,
	}
	if v.Described {
		desc := kmsg.NewDescribeClusterResponse()
		desc.Version = 2
		desc.ClusterID, desc.ControllerID, desc.Brokers = s.ClusterID, s.ControllerID, s.Described
		v.DescribedVersion, v.DescribeCluster = desc.Version, desc.AppendTo(nil)
	}
	return v
}

// read decodes a stored view and judges it as a broker's word would be.
func (v *storedView) read(rules snapshot.Rules) (*snapshot.Snapshot, error) {
	var desc *snapshot.Encoded
	if v.Described {
		desc = &snapshot.Encoded{Version: v.DescribedVersion, Body: v.DescribeCluster}
	}
	var r snapshot.Reader
	cand, fault := r.Read(snapshot.Encoded{Version: v.MetadataVersion, Body: v.loaded}, desc, v.KRaft, nil, rules)
	if fault != nil {
		return nil, fault
	}
	return cand.Snapshot, nil
}

func storeAPIs(broker string, nodeID int32, a *snapshot.APIs) storedAPIs {
	r := a.Response()
	return storedAPIs{Broker: broker, NodeID: nodeID, Version: r.Version, Response: r.AppendTo(nil)}
}

func (s storedAPIs) read() (*snapshot.APIs, error) {
	r := kmsg.NewPtrApiVersionsResponse()
	r.Version = s.Version
	if err := r.ReadFrom(s.Response); err != nil {
		return nil, fmt.Errorf("ApiVersions of node %d: %w", s.NodeID, err)
	}
	return snapshot.APIsOf(r), nil
}

// statePath is where a pool's state is kept.
func statePath(dir, pool string) string { return filepath.Join(dir, pool+".state") }

// saveState writes a pool's state so that a reader sees the old file or the new one, whole.
func saveState(dir string, s *state) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if err := s.writeTo(sum, raw); err != nil {
		return err
	}
	head, err := json.Marshal(stateFile{Version: stateVersion, SHA256: hex.EncodeToString(sum.Sum(nil))})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	// By itself it would be in the directory for temporary files, where that is on the same file system.
	f, err := renameio.NewPendingFile(statePath(dir, s.Pool), renameio.WithTempDir(dir), renameio.WithPermissions(0o640))
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }() // does nothing once the file is in its place
	if _, err := f.Write(append(head, '\n')); err != nil {
		return err
	}
	if err := s.writeTo(f, raw); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// writeTo writes what follows the first line; raw is the state in JSON.
func (s *state) writeTo(w io.Writer, raw []byte) error {
	if _, err := w.Write(append(raw, '\n')); err != nil || s.View == nil {
		return err
	}
	return s.View.save.WriteMetadata(w)
}

// removeUnfinished removes what saves left behind that were killed: each is as large as the state.
func removeUnfinished(dir, pool string) {
	prefix := "." + filepath.Base(statePath(dir, pool))
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), prefix)
		if _, err := strconv.ParseUint(number, 10, 64); ours && err == nil && e.Type().IsRegular() {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// loadState reads a pool's state. No file is no error and no state; every other fault is an error that says what to do.
func loadState(dir, pool string) (*state, error) {
	path := statePath(dir, pool)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old := filepath.Join(dir, pool+".json") // before version 2
		if _, err := os.Lstat(old); err == nil {
			return nil, fmt.Errorf("%s: an older kvip's, which this one does not read; delete it", old)
		}
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // to open a pipe would wait for somebody to write
		return nil, fmt.Errorf("%s: not a file; remove it", path)
	case info.Size() > maxState:
		return nil, fmt.Errorf("%s: larger than %d bytes; delete it", path, maxState)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := raw.ReadFrom(io.LimitReader(f, maxState)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var file stateFile
	head, rest, _ := bytes.Cut(raw.Bytes(), []byte{'\n'})
	if err := json.Unmarshal(head, &file); err != nil {
		return nil, fmt.Errorf("%s: not a state file (%w); delete it", path, err)
	}
	if file.Version != stateVersion {
		return nil, fmt.Errorf("%s: version %d, this kvip reads %d; it is replaced", path, file.Version, stateVersion)
	}
	if sum := sha256.Sum256(rest); hex.EncodeToString(sum[:]) != file.SHA256 {
		return nil, fmt.Errorf("%s: the checksum does not match, so the file is damaged or was edited; it is replaced", path)
	}
	var s state
	text, view, _ := bytes.Cut(rest, []byte{'\n'})
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: %w; delete it", path, err)
	}
	if s.View != nil {
		s.View.loaded = view
	}
	if s.Pool != pool {
		return nil, fmt.Errorf("%s: the state of pool %q; it is replaced", path, s.Pool)
	}
	return &s, nil
}
