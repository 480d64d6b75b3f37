package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile is far beyond any sensible kvip.yaml.
const maxFile = 4 << 20

// Load reads and checks a file. The Config is nil when Faults.Errors() > 0; warnings come with a Config.
func Load(path string) (*Config, Faults) {
	src, err := read(path)
	if err != nil {
		return nil, Faults{{File: path, What: err.Error(), Fix: "name a readable file, as in: kvip serve -c /etc/kvip/kvip.yaml"}}
	}
	return Parse(path, src)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if len(src) > maxFile {
		return nil, fmt.Errorf("is larger than %d MiB", maxFile>>20)
	}
	return src, nil
}

// Parse is Load for a file's contents; name is what faults call it.
func Parse(name string, src []byte) (*Config, Faults) {
	cfg, d := decodeFile(name, src)
	if cfg != nil {
		v := &validator{decoder: d, cfg: cfg}
		v.validate()
		for i := range cfg.Pools {
			cfg.Pools[i].Balancer.settle()
		}
	}
	faults := d.faults.sorted()
	if faults.Errors() > 0 {
		return nil, faults
	}
	return cfg, faults
}

// decodeFile returns a Config as far as the file could be read, nil when it is no YAML mapping at all.
func decodeFile(name string, src []byte) (*Config, *decoder) {
	text := strings.TrimPrefix(string(src), "\ufeff")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	d := &decoder{
		file:    name,
		lines:   strings.Split(strings.TrimSuffix(text, "\n"), "\n"),
		anchors: map[string]ast.Node{},
		places:  map[string]place{},
	}
	file, err := parser.ParseBytes([]byte(text), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntax(err)
		return nil, d
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body != nil:
			d.fault("", first(doc.Body), "a second document in one file", "remove the line --- and what follows it")
			return nil, d
		default:
			body = doc.Body
		}
	}
	if body == nil {
		d.faults = append(d.faults, Fault{File: name, What: "nothing in this file", Fix: "at least pools and vips are needed; see the example in README.md"})
		return nil, d
	}
	ast.Walk(d, body)
	cfg := Defaults()
	d.decode("", body, reflect.ValueOf(&cfg).Elem())
	return &cfg, d
}

// Visit collects the anchors (ast.Visitor).
func (d *decoder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok {
		d.anchors[a.Name.GetToken().Value] = a.Value
	}
	return d
}

// syntax reports what the YAML parser could not read.
func (d *decoder) syntax(err error) {
	var ye yaml.Error
	if !errors.As(err, &ye) {
		d.faults = append(d.faults, Fault{File: d.file, What: err.Error()})
		return
	}
	d.fault("", ye.GetToken(), "not YAML: "+ye.GetMessage(), "indent with spaces, close every quote and bracket, put a space after each colon")
}
