package config

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// decoder fills structs from a parsed file and, unlike the YAML library's own strict mode, goes on after a fault: it
// collects them all, and remembers where each key stands for the rules that come after it.
type decoder struct {
	file    string
	lines   []string
	anchors map[string]ast.Node
	places  map[string]place
	faults  Faults
}

// place is where one key or list entry of the file stands.
type place struct {
	key, value *token.Token
	// bad says that a fault has been told already: rules about the value would only repeat it.
	bad bool
}

// nodeDecoder is a value whose keys depend on each other (a discovery entry's on its type).
type nodeDecoder interface {
	decodeNode(d *decoder, path string, n ast.Node)
}

// defaulter is a list entry that has defaults of its own.
type defaulter interface{ setDefaults() }

func (p *Pool) setDefaults() { *p = DefaultPool() }
func (v *VIP) setDefaults()  { *v = DefaultVIP() }

// fault reports what is wrong at tok, under path.
func (d *decoder) fault(path string, tok *token.Token, what, fix string) {
	d.faults = append(d.faults, d.at(tok, what, fix))
	p := d.places[path]
	p.bad = true
	d.places[path] = p
}

// at makes a Fault with the source line of tok.
func (d *decoder) at(tok *token.Token, what, fix string) Fault {
	f := Fault{File: d.file, What: what, Fix: fix}
	if tok == nil || tok.Position == nil || tok.Position.Line < 1 {
		return f
	}
	f.Line, f.Col = tok.Position.Line, max(tok.Position.Column, 1)
	if f.Line > len(d.lines) {
		// The end of the file, where something is missing.
		f.Line, f.Col = len(d.lines), utf8.RuneCountInString(d.lines[len(d.lines)-1])+1
	}
	f.Source = d.lines[f.Line-1]
	rest := max(utf8.RuneCountInString(f.Source)-f.Col+1, 1)
	width := utf8.RuneCountInString(tok.Value)
	if tok.Type == token.SingleQuoteType || tok.Type == token.DoubleQuoteType {
		width += 2
	}
	f.Width = min(max(width, 1), rest)
	return f
}

// decode fills v from n; null leaves v as it is.
func (d *decoder) decode(path string, n ast.Node, v reflect.Value) {
	n, ok := d.resolve(path, n)
	if !ok || n.Type() == ast.NullType {
		return
	}
	if nd, ok := v.Addr().Interface().(nodeDecoder); ok {
		nd.decodeNode(d, path, n)
		return
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.decodeText(path, n, text)
		return
	}
	if short, ok := v.Addr().Interface().(yaml.InterfaceUnmarshaler); ok {
		if text, ok := scalar(n); ok {
			d.decodeShort(path, n, text, short)
			return
		}
	}
	switch {
	case v.Kind() == reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.decode(path, n, p.Elem())
		v.Set(p)
	case v.Type() == reflect.TypeFor[time.Duration]():
		d.decodeDuration(path, n, v)
	case v.Kind() == reflect.Struct:
		d.decodeMapping(path, n, v)
	case v.Kind() == reflect.Slice:
		d.decodeList(path, n, v)
	default:
		d.decodeScalar(path, n, v)
	}
}

// resolve strips anchors and tags, and follows an alias to what it names.
func (d *decoder) resolve(path string, n ast.Node) (ast.Node, bool) {
	for range 100 {
		switch t := n.(type) {
		case *ast.AnchorNode:
			n = t.Value
		case *ast.TagNode:
			n = t.Value
		case *ast.MappingKeyNode:
			n = t.Value
		case *ast.AliasNode:
			name := t.Value.GetToken().Value
			target, ok := d.anchors[name]
			if !ok {
				d.fault(path, t.GetToken(), fmt.Sprintf("no anchor &%s in this file", name), "define it before it is used, or write the value out")
				return nil, false
			}
			n = target
		default:
			return n, n != nil
		}
	}
	d.fault(path, n.GetToken(), "an alias that leads back to itself", "write the value out")
	return nil, false
}

// field is one key that a struct takes.
type field struct {
	name  string
	value reflect.Value
}

// fields lists the keys of structs, in order.
func fields(structs ...reflect.Value) []field {
	var fs []field
	for _, s := range structs {
		for i := range s.NumField() {
			name, _, _ := strings.Cut(s.Type().Field(i).Tag.Get("yaml"), ",")
			if name != "" && name != "-" {
				fs = append(fs, field{name, s.Field(i)})
			}
		}
	}
	return fs
}

// decodeMapping fills the structs, which share one mapping's keys among them.
func (d *decoder) decodeMapping(path string, n ast.Node, structs ...reflect.Value) {
	known := fields(structs...)
	pairs, ok := d.pairs(path, n)
	if !ok {
		d.fault(path, first(n), "a mapping with keys is expected here", "write "+keysOf(known)+" as key: value")
		return
	}
	seen := map[string]int{}
	for _, pair := range pairs {
		key := pair.Key.GetToken()
		if k, ok := pair.Key.(*ast.MappingKeyNode); ok {
			key = k.Value.GetToken()
		}
		i := slices.IndexFunc(known, func(f field) bool { return f.name == key.Value })
		if i < 0 {
			d.unknownKey(path, key, known)
			continue
		}
		sub := join(path, key.Value)
		if line, twice := seen[key.Value]; twice {
			d.fault(sub, key, fmt.Sprintf("key %s is given twice, first in line %d", quote(key.Value), line), "keep one of them")
			continue
		}
		seen[key.Value] = key.Position.Line
		d.places[sub] = place{key: key, value: d.valueToken(pair.Value, key)}
		for _, f := range known[i:] {
			if f.name == key.Value {
				d.decode(sub, pair.Value, f.value)
			}
		}
	}
}

// pairs returns a mapping's keys and values, with those of merge keys (<<: *anchor) after its own.
func (d *decoder) pairs(path string, n ast.Node) ([]*ast.MappingValueNode, bool) {
	var own, merged []*ast.MappingValueNode
	var values []*ast.MappingValueNode
	switch t := n.(type) {
	case *ast.MappingNode:
		values = t.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{t}
	default:
		return nil, false
	}
	for _, pair := range values {
		if !pair.Key.IsMergeKey() {
			own = append(own, pair)
			continue
		}
		if target, ok := d.resolve(path, pair.Value); ok {
			more, _ := target.(*ast.MappingNode)
			if more == nil {
				d.fault(path, pair.Key.GetToken(), "<< needs an alias of a mapping", "write <<: *name, where &name stands at a mapping")
				continue
			}
			merged = append(merged, more.Values...)
		}
	}
	for _, pair := range merged {
		name := pair.Key.GetToken().Value
		if !slices.ContainsFunc(own, func(p *ast.MappingValueNode) bool { return p.Key.GetToken().Value == name }) {
			own = append(own, pair)
		}
	}
	return own, true
}

// unknownKey reports a key that nothing takes, with the one that was probably meant.
func (d *decoder) unknownKey(path string, key *token.Token, known []field) {
	names := make([]string, len(known))
	for i, f := range known {
		names[i] = f.name
	}
	where := ""
	if path != "" {
		where = " in " + path
	}
	what := fmt.Sprintf("unknown key %s%s", quote(key.Value), where)
	if near := nearest(key.Value, names); near != "" {
		d.fault(join(path, near), key, what, fmt.Sprintf("did you mean %q?", near))
		return
	}
	for _, f := range known {
		if f.value.Kind() == reflect.Struct && slices.ContainsFunc(fields(f.value), func(sub field) bool { return sub.name == key.Value }) {
			d.fault(join(path, f.name), key, what, fmt.Sprintf("it belongs under %q", f.name))
			return
		}
	}
	d.fault(join(path, key.Value), key, what, "known keys here: "+strings.Join(names, ", "))
}

func (d *decoder) decodeList(path string, n ast.Node, v reflect.Value) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fault(path, first(n), "a list is expected here", "write one entry a line, each after \"- \", or [a, b]")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
	for i, entry := range list.Values {
		sub := fmt.Sprintf("%s[%d]", path, i)
		entry = plainWithColon(entry)
		tok := first(entry)
		d.places[sub] = place{key: tok, value: tok}
		if e, ok := v.Index(i).Addr().Interface().(defaulter); ok {
			e.setDefaults()
		}
		if entry.Type() == ast.NullType {
			d.fault(sub, tok, "an empty list entry", "fill it in, or remove it")
			continue
		}
		d.decode(sub, entry, v.Index(i))
	}
}

// plainWithColon undoes a fault of the YAML scanner: inside {}, it takes host:9092 as an entry of a list for a mapping of
// host to 9092, although without a space after the colon it is one plain text (YAML 1.2.2, section 7.3.3).
func plainWithColon(n ast.Node) ast.Node {
	pair, ok := n.(*ast.MappingValueNode)
	if m, isMap := n.(*ast.MappingNode); isMap && len(m.Values) == 1 && m.GetToken().Type != token.MappingStartType {
		pair, ok = m.Values[0], true
	}
	if !ok {
		return n
	}
	key, colon, value := pair.Key.GetToken(), pair.Start, pair.Value.GetToken()
	if _, plain := scalar(pair.Value); !plain || key.Indicator == token.QuotedScalarIndicator || value.Indicator == token.QuotedScalarIndicator {
		return n
	}
	k, c, v := key.Position, colon.Position, value.Position
	if k.Line != c.Line || c.Line != v.Line || c.Column != k.Column+utf8.RuneCountInString(key.Value) || v.Column != c.Column+1 {
		return n
	}
	return ast.String(token.String(key.Value+":"+value.Value, key.Value+":"+value.Value, k))
}

func (d *decoder) decodeText(path string, n ast.Node, v encoding.TextUnmarshaler) {
	text, ok := scalar(n)
	if !ok {
		d.fault(path, first(n), "a single value is expected here", "write one value, without [ ] or { }")
		return
	}
	if err := v.UnmarshalText([]byte(text)); err != nil {
		switch v.(type) {
		case *Bytes:
			d.fault(path, first(n), quote(text)+" is not a size", "write bytes, as a number or like 64KiB or 2MiB")
		case *netip.Prefix:
			d.fault(path, first(n), quote(text)+" is not a network", "write one like 10.20.0.0/16, a single host as 10.20.0.7/32")
		default:
			d.fault(path, first(n), err.Error(), "")
		}
	}
}

// decodeShort lets a struct that may be written as a single value ("host:9092" for {address: host:9092}) read it.
func (d *decoder) decodeShort(path string, n ast.Node, text string, short yaml.InterfaceUnmarshaler) {
	err := short.UnmarshalYAML(func(dst any) error {
		s, ok := dst.(*string)
		if !ok {
			return errors.New("a mapping with keys is expected here")
		}
		*s = text
		return nil
	})
	if err != nil {
		d.fault(path, first(n), err.Error(), "")
	}
}

func (d *decoder) decodeDuration(path string, n ast.Node, v reflect.Value) {
	const fix = "write a number with its unit, like 500ms, 1s, 5m or 1h30m"
	text, ok := scalar(n)
	if !ok {
		d.fault(path, first(n), "a duration is expected here", fix)
		return
	}
	dur, err := time.ParseDuration(text)
	switch {
	case err == nil:
		v.SetInt(int64(dur))
	case n.Type() == ast.IntegerType || n.Type() == ast.FloatType:
		d.fault(path, first(n), fmt.Sprintf("duration %s has no unit", text), "did you mean "+withUnit(text)+"?")
	default:
		d.fault(path, first(n), quote(text)+" is not a duration", fix)
	}
}

// withUnit gives a bare number the unit that it was probably meant in: what counts in tens is milliseconds.
func withUnit(number string) string {
	if f, err := strconv.ParseFloat(number, 64); err == nil && f >= 50 {
		return fmt.Sprintf("%sms, or %[1]ss", number)
	}
	return number + "s"
}

func (d *decoder) decodeScalar(path string, n ast.Node, v reflect.Value) {
	text, ok := scalar(n)
	switch v.Kind() {
	case reflect.String:
		if !ok {
			d.fault(path, first(n), "a single text is expected here", "write one value, without [ ] or { }")
			return
		}
		v.SetString(text)
	case reflect.Bool:
		b, isBool := n.(*ast.BoolNode)
		if !isBool {
			d.fault(path, first(n), quote(first(n).Value)+" is neither true nor false", "write true or false")
			return
		}
		v.SetBool(b.Value)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if !ok || n.Type() != ast.IntegerType && n.Type() != ast.FloatType || err != nil {
			d.fault(path, first(n), quote(first(n).Value)+" is not a number", "write digits, with a point where needed: 1.9")
			return
		}
		v.SetFloat(f)
	case reflect.Int, reflect.Int32:
		i, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 32)
		if !ok || n.Type() != ast.IntegerType || err != nil {
			d.fault(path, first(n), quote(first(n).Value)+" is not a whole number", "write digits only, at most 2147483647")
			return
		}
		v.SetInt(i)
	default:
		// A struct with a field of another kind is a mistake in this package; the full-config test would show it.
		d.fault(path, first(n), "kvip cannot read a value of this kind", "")
	}
}

// scalar returns the text of a single value as it was written.
func scalar(n ast.Node) (string, bool) {
	switch t := n.(type) {
	case *ast.StringNode:
		return t.Value, true
	case *ast.LiteralNode:
		return strings.TrimSpace(t.Value.Value), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// first returns the token at which a node begins; the tree keeps a mapping's colon instead.
func first(n ast.Node) *token.Token {
	switch t := n.(type) {
	case *ast.MappingNode:
		if len(t.Values) > 0 && !t.IsFlowStyle {
			return first(t.Values[0])
		}
	case *ast.MappingValueNode:
		return first(t.Key)
	case *ast.AnchorNode:
		return t.GetToken()
	}
	return n.GetToken()
}

// valueToken is where a fault about a value is shown: at the value, or at its key when there is none.
func (d *decoder) valueToken(n ast.Node, key *token.Token) *token.Token {
	if n == nil || n.Type() == ast.NullType {
		return key
	}
	return first(n)
}

func keysOf(fs []field) string {
	names := make([]string, 0, len(fs))
	for _, f := range fs {
		names = append(names, f.name)
	}
	return oneOf(names)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
