package provider

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/goccy/go-yaml"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvip/kvip/discovery"
)

const (
	fileMaxBytes = 8 << 20
	// filePoll finds what no event tells of: changes over NFS, a directory that was itself replaced.
	filePoll = 5 * time.Second
	// fileSettle is how long a file has to stay as it is before it is believed.
	fileSettle = 100 * time.Millisecond
)

// FileConfig is `discovery: {type: file, path: FILE}`. The file has what `type: static` has under brokers, as a list or
// under the key brokers, in YAML or JSON, and ends in a line feed (JSON: in its bracket).
//
// Whoever writes it should write another file and rename it: what such a file no longer lists goes at once. In one that is
// written in place, or deleted and created, a missing broker may only be not yet written, so it is doubted for shrink_hold.
type FileConfig struct {
	Type string `yaml:"type"`
	// Path is the file; it has to be there at the latest when kvip looks for it, until then the pool has no brokers.
	Path string `yaml:"path"`
}

// Validate implements Config.
func (c *FileConfig) Validate() error {
	if c.Path == "" {
		return &FieldError{Field: "path", Problem: "names no file", Fix: "add path: with the file that lists the brokers"}
	}
	if info, err := os.Stat(c.Path); err == nil && info.IsDir() {
		return &FieldError{Field: "path", Problem: c.Path + " is a directory", Fix: "name the file in it"}
	}
	return nil
}

// Build implements Config.
func (c *FileConfig) Build(deps Deps) (discovery.Provider, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &file{again: newAgain(), Deps: deps.withDefaults("file"), path: c.Path}, nil
}

// file reads a file whenever its directory changes.
type file struct {
	again
	Deps
	path string

	// What was accepted last.
	info     os.FileInfo
	sum      [sha256.Size]byte
	explicit bool
	list     []discovery.Instance
	// away says that the file was not there since: what is there next may have been created, and not be whole.
	away bool
}

// Name implements discovery.Provider.
func (f *file) Name() string { return f.Deps.Name }

// Run implements discovery.Provider.
func (f *file) Run(ctx context.Context, publish func(discovery.Update)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.Log.Warn("file: it is only looked at every few seconds", zap.String("path", f.path), zap.Duration("every", filePoll), zap.Error(err))
		w = &fsnotify.Watcher{} // whose channels never have anything
	} else {
		defer w.Close()
	}
	poll := time.NewTicker(filePoll)
	defer poll.Stop()
	var failed string
	for asked := true; ; {
		if w.Events != nil {
			_ = w.Add(filepath.Dir(f.path)) // again, for it may have been replaced; adding twice changes nothing
		}
		changed, err := f.read(ctx, w)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (asked || err.Error() != failed):
			failed = err.Error()
			publish(discovery.Update{Provider: f.Name(), Err: err, At: f.Now()})
		case err == nil && (asked || changed || failed != ""):
			failed = ""
			publish(discovery.Update{Provider: f.Name(), Instances: f.list, Explicit: f.explicit, At: f.Now()})
		}
		asked = false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.again:
			asked = true
		case <-poll.C:
			asked = true
		case e := <-w.Events:
			f.happened(e)
		case err := <-w.Errors:
			f.Log.Debug("file: events were lost", zap.Error(err))
		}
	}
}

// happened takes note of an event in the file's directory.
func (f *file) happened(e fsnotify.Event) {
	if e.Has(fsnotify.Remove|fsnotify.Rename) && filepath.Base(e.Name) == filepath.Base(f.path) {
		f.away = true
	}
}

// read takes the file over once it has stopped changing. An error leaves what was accepted before.
func (f *file) read(ctx context.Context, w *fsnotify.Watcher) (changed bool, err error) {
	info, text, err := readBounded(f.path)
	if err != nil {
		f.away = f.away || errors.Is(err, fs.ErrNotExist)
		return false, fmt.Errorf("file: %w", err)
	}
	sum := sha256.Sum256(text)
	if f.info != nil && sum == f.sum {
		// The same list in another file is whole by now, whatever it was before.
		f.explicit = f.explicit || !os.SameFile(info, f.info)
		f.info, f.away = info, false
		return false, nil
	}
	for {
		for settled := time.After(fileSettle); settled != nil; {
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case e := <-w.Events:
				f.happened(e)
			case <-settled:
				settled = nil
			}
		}
		before := sum
		if info, text, err = readBounded(f.path); err != nil {
			return false, fmt.Errorf("file: %w", err)
		}
		if sum = sha256.Sum256(text); sum == before {
			break
		}
	}
	brokers, err := parseBrokers(text)
	if err != nil {
		return false, fmt.Errorf("file: %s: %w", f.path, err)
	}
	f.explicit = !f.away && (f.info == nil || !os.SameFile(info, f.info))
	f.info, f.sum, f.list, f.away = info, sum, instances(brokers, f.Name()), false
	return true, nil
}

func readBounded(path string) (os.FileInfo, []byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // to open a pipe would wait for somebody to write
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is no file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, fileMaxBytes+1))
	if err == nil && len(text) > fileMaxBytes {
		err = fmt.Errorf("%s is longer than %d MiB", path, fileMaxBytes>>20)
	}
	return info, text, err
}

// parseBrokers reads a list of brokers, and refuses one that may have been cut short.
func parseBrokers(text []byte) ([]StaticBroker, error) {
	trimmed := bytes.TrimSpace(text)
	if len(trimmed) == 0 {
		return nil, errors.New("is empty: list at least one host:port")
	}
	if last := text[len(text)-1]; last != '\n' && last != ']' && last != '}' {
		return nil, errors.New("does not end in a line feed: it may have been cut short")
	}
	var whole struct {
		Brokers []StaticBroker `yaml:"brokers"`
	}
	var target any = &whole
	if trimmed[0] == '[' || trimmed[0] == '-' && !bytes.HasPrefix(trimmed, []byte("---")) {
		target = &whole.Brokers
	}
	if err := yaml.UnmarshalWithOptions(text, target, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("cannot be read: %.300s", yaml.FormatError(err, false, false))
	}
	if err := checkBrokers(whole.Brokers); err != nil {
		return nil, err
	}
	return whole.Brokers, nil
}
