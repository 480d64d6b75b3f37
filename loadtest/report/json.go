package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/google/renameio/v2"
)

// WriteJSON writes the run so that ReadJSON reads back the same one.
func (r *Run) WriteJSON(w io.Writer) error {
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return out.Flush()
}

// ReadJSON reads what WriteJSON wrote. An error names the field, and what is wrong with it.
func ReadJSON(in io.Reader) (*Run, error) {
	r := &Run{}
	if err := json.NewDecoder(in).Decode(r); err != nil {
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) {
			return nil, fmt.Errorf("field %s is a JSON %s: not a report of `kvip loadtest`", t.Field, t.Value)
		}
		return nil, fmt.Errorf("not a report of `kvip loadtest`: %w", err)
	}
	return r, r.check()
}

// check says what keeps a run from being used: everything else in this package relies on it.
func (r *Run) check() error {
	switch {
	case r.Schema == 0:
		return errors.New(`no "schema": not a report of ` + "`kvip loadtest`")
	case r.Schema > Schema:
		return fmt.Errorf("schema %d, and this release reads %d: use the release that wrote it (%s)", r.Schema, Schema, r.Environment.Version)
	case len(r.Sides) == 0 || len(r.Sides) > 2:
		return fmt.Errorf("%d sides: a run has one target, or two with --vs", len(r.Sides))
	}
	sides := []*Side{}
	for i := range r.Sides {
		sides = append(sides, &r.Sides[i])
	}
	if r.Calibration != nil {
		sides = append(sides, r.Calibration)
	}
	for _, s := range sides {
		last := math.Inf(-1)
		for i, w := range s.Windows {
			if !(w.Seconds > 0) || !(w.At > last) || math.IsInf(w.At, 0) || math.IsInf(w.Seconds, 0) {
				return fmt.Errorf("%s: window %d begins at %g s and is %g s long: windows are longer than nothing, and in the order of time", s.Label(), i, w.At, w.Seconds)
			}
			last = w.At
		}
	}
	return nil
}

// ReadFile reads a saved run.
func ReadFile(path string) (*Run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	defer f.Close()
	r, err := ReadJSON(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("report %s: %w", path, err)
	}
	return r, nil
}

// WriteFile has write fill the file at path, which appears under its name only when it is whole.
func WriteFile(path string, write func(io.Writer) error) error {
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644))
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer f.Cleanup()
	if err := write(f); err != nil {
		return fmt.Errorf("report %s: %w", path, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
