package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kvip/kvip/"

// mayImport has, for each package (or tree, with /...), the project's packages that it may import: imports point one way.
// The first row that matches counts; a package without a row fails the test.
var mayImport = []struct {
	pkg     string
	imports []string
}{
	{"protocol/wire", nil},
	{"backends/snapshot", nil},
	{"discovery", nil},
	{"discovery/provider", []string{"discovery"}},
	{"healthcheck", nil},
	{"healthcheck/probe", []string{"healthcheck", "protocol/wire", "backends/snapshot"}},
	{"backends/policy", []string{"protocol/wire"}},
	{"backends/upstream", []string{"protocol/wire"}},
	{"protocol/answer", []string{"protocol/wire", "backends/snapshot"}},
	{"protocol/answer/answertest", nil},
	{"protocol/forward", []string{"protocol/wire"}},
	{"protocol/session", []string{"protocol/wire", "protocol/answer", "protocol/forward", "backends/snapshot"}},
	{"protocol/front", []string{"protocol/wire", "protocol/answer", "protocol/forward", "protocol/session", "backends/snapshot"}},
	{"backends", []string{
		"discovery", "healthcheck", "healthcheck/probe", "protocol/wire", "protocol/answer", "protocol/forward",
		"backends/snapshot", "backends/policy", "backends/upstream",
	}},
	{"loadtest/...", []string{"loadtest/..."}},
	{"cmd/kvip/...", []string{"..."}},
}

// onlyIn has the libraries that one place alone knows, so that another one can take their place.
var onlyIn = []struct {
	library string
	files   []string
}{
	{"github.com/panjf2000/gnet/v2", []string{"protocol/front/*.go", "loadtest/floor/*.go"}},
	{"github.com/hashicorp/consul/api", []string{"discovery/provider/consul*.go"}},
}

// goPackage is what the test needs of go list's answer.
type goPackage struct {
	ImportPath, Dir                    string
	Imports, TestImports, XTestImports []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// packages lists the project's packages, those of end-to-end tests too.
func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-tags", "e2e", "-json=ImportPath,Dir,Imports,TestImports,XTestImports,GoFiles,TestGoFiles,XTestGoFiles", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// matches says whether a package is pattern, or in the tree that pattern names.
func matches(pattern, pkg string) bool {
	if tree, ok := strings.CutSuffix(pattern, "..."); ok {
		return strings.HasPrefix(pkg+"/", tree)
	}
	return pattern == pkg
}

// TestImports holds the directions above, for tests inside a package too. External test packages may import anything, but
// for loadtest's: a fault in the product's codec must not hide itself there.
func TestImports(t *testing.T) {
	all := packages(t)
	if len(all) < 10 {
		t.Fatalf("go list shows %d packages only", len(all))
	}
	for _, p := range all {
		pkg := strings.TrimPrefix(p.ImportPath, module)
		row := slices.IndexFunc(mayImport, func(r struct {
			pkg     string
			imports []string
		}) bool {
			return matches(r.pkg, pkg)
		})
		if row < 0 {
			t.Errorf("%s has no row in mayImport: add one", pkg)
			continue
		}
		imports := slices.Concat(p.Imports, p.TestImports)
		if strings.HasPrefix(pkg, "loadtest") {
			imports = append(imports, p.XTestImports...)
		}
		for _, i := range imports {
			i, own := strings.CutPrefix(i, module)
			if own && !slices.ContainsFunc(mayImport[row].imports, func(allowed string) bool { return matches(allowed, i) }) {
				t.Errorf("%s imports %s; it may import %q", pkg, i, mayImport[row].imports)
			}
		}
	}
}

// TestLibrariesInOnePlace: gnet and Consul's client are each known to one place.
func TestLibrariesInOnePlace(t *testing.T) {
	found := map[string]int{}
	for _, p := range packages(t) {
		pkg := strings.TrimPrefix(p.ImportPath, module)
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ImportsOnly)
			if err != nil {
				t.Errorf("%s/%s: %v", pkg, name, err)
				continue
			}
			for _, spec := range f.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				for _, rule := range onlyIn {
					if !matches(rule.library+"/...", imported) && imported != rule.library {
						continue
					}
					found[rule.library]++
					file := path.Join(pkg, name)
					if !slices.ContainsFunc(rule.files, func(pattern string) bool { ok, _ := path.Match(pattern, file); return ok }) {
						t.Errorf("%s imports %s; only %q may", file, imported, rule.files)
					}
				}
			}
		}
	}
	for _, rule := range onlyIn {
		if found[rule.library] == 0 {
			t.Errorf("nothing imports %s: the rule says nothing", rule.library)
		}
	}
}
