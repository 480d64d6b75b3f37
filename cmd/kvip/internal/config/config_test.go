package config

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvip/kvip/discovery/provider"
)

var update = flag.Bool("update", false, "rewrite the expected texts in testdata")

// TestFaults: every bad file of the corpus gets exactly the text beside it, all faults in one go.
func TestFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 25 {
		t.Fatalf("corpus has %d files: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			cfg, faults := load(t, file)
			if cfg != nil || faults.Errors() == 0 {
				t.Errorf("accepted, with faults: %v", faults)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", faults.Error())
		})
	}
}

// TestWarnings: these files are accepted, with exactly these warnings.
func TestWarnings(t *testing.T) {
	files, err := filepath.Glob("testdata/warn/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			cfg, faults := load(t, file)
			if cfg == nil {
				t.Errorf("refused")
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", faults.Error())
		})
	}
}

// TestGood: these files are accepted without a word.
func TestGood(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		if _, faults := load(t, file); len(faults) > 0 {
			t.Errorf("%s:\n%s", file, faults.Error())
		}
	}
}

// TestUnreadable: a file that is not there, or no file, is a fault like others.
func TestUnreadable(t *testing.T) {
	for path, want := range map[string]string{
		"testdata/missing.yaml": "testdata/missing.yaml: error: cannot be read: no such file or directory\n  fix: name a readable file, as in: kvip serve -c /etc/kvip/kvip.yaml\n",
		"testdata":              "testdata: error: cannot be read: is a directory\n  fix: name a readable file, as in: kvip serve -c /etc/kvip/kvip.yaml\n",
	} {
		cfg, faults := Load(path)
		if cfg != nil || faults.Error() != want {
			t.Errorf("Load(%s) = %v, %q; want %q", path, cfg, faults.Error(), want)
		}
	}
}

// TestContractExample: the file that users know is read as it is meant.
func TestContractExample(t *testing.T) {
	cfg, faults := load(t, "testdata/good/contract.yaml")
	if len(faults) > 0 {
		t.Fatal(faults.Error())
	}
	want := Defaults()
	want.Pools = []Pool{DefaultPool()}
	want.Pools[0].Name, want.Pools[0].Balancer.Heads = "orders", "round-robin"
	want.Pools[0].Discovery = Discovery{{
		SourceKeys: SourceKeys{Type: "consul", ShrinkHold: time.Minute},
		Provider:   &provider.ConsulConfig{Type: "consul", Service: "kafka-orders", Tags: []string{}},
	}}
	want.VIPs = []VIP{DefaultVIP()}
	want.VIPs[0].Name, want.VIPs[0].Listen, want.VIPs[0].Pool = "orders", "0.0.0.0:9092", "orders"
	want.VIPs[0].Addresses = []string{"kafka.example.com:9092"}
	if diff := cmp.Diff(&want, cfg); diff != "" {
		t.Error(diff)
	}
}

// TestFullFileHasEveryKey: full.yaml shows each key that there is, so that a new one cannot be forgotten there, nor be of
// a kind that the decoder does not know.
func TestFullFileHasEveryKey(t *testing.T) { everyKey(t, "testdata/good/full.yaml") }

// TestExample: the shipped example has every key, is good, and shows the defaults.
func TestExample(t *testing.T) {
	const file = "../../../../deploy/kvip.example.yaml"
	everyKey(t, file)
	cfg, faults := load(t, file)
	if len(faults) > 0 {
		t.Fatal(faults.Error())
	}
	want := Defaults()
	want.Pools, want.VIPs = slices.Clone(cfg.Pools), []VIP{DefaultVIP()}
	want.Pools[0] = DefaultPool()
	want.Pools[0].Balancer.settle()
	want.Pools[0].Name, want.Pools[0].Discovery = "orders", cfg.Pools[0].Discovery
	v := &want.VIPs[0]
	v.Name, v.Listen, v.Pool, v.Addresses = "orders", "0.0.0.0:9092", "orders", []string{"kafka.example.com:9092"}
	if diff := cmp.Diff(&want, cfg, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func everyKey(t *testing.T, file string) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, d := decodeFile(filepath.Base(file), src)
	if len(d.faults) > 0 {
		t.Fatal(d.faults.Error())
	}
	have := map[string]bool{}
	for path := range d.places {
		have[withoutIndices(path)] = true
	}
	for _, want := range keyPaths("", reflect.TypeFor[Config]()) {
		if !have[want] {
			t.Errorf("%s lacks the key %s", file, want)
		}
	}
	for name, entry := range provider.Registry {
		for _, want := range keyPaths("pools.discovery", reflect.TypeOf(entry.NewConfig()).Elem()) {
			if !have[want] {
				t.Errorf("%s lacks the key %s of discovery type %s", file, want, name)
			}
		}
	}
}

// keyPaths lists the paths of all keys of a struct, lists without their indices.
func keyPaths(path string, t reflect.Type) []string {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[Source]() {
		t = reflect.TypeFor[SourceKeys]()
	}
	var paths []string
	if t.Kind() == reflect.Struct && t.PkgPath() != "net/netip" {
		for _, f := range fields(reflect.New(t).Elem()) {
			paths = append(paths, keyPaths(join(path, f.name), f.value.Type())...)
		}
		return paths
	}
	return []string{path}
}

func withoutIndices(path string) string {
	var b strings.Builder
	depth := 0
	for _, r := range path {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case depth == 0:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// TestEffectiveConfigReadsBack: what `kvip check --effective` prints is a kvip.yaml that means the same.
func TestEffectiveConfigReadsBack(t *testing.T) {
	cfg, faults := load(t, "testdata/good/full.yaml")
	if len(faults) > 0 {
		t.Fatal(faults.Error())
	}
	text, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, faults := Parse("effective.yaml", text)
	if len(faults) > 0 {
		t.Fatalf("%s\n%s", faults.Error(), text)
	}
	if diff := cmp.Diff(cfg, again, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("%s\n%s", diff, text)
	}
}

// TestRedacted: a password in the Consul URL is not shown.
func TestRedacted(t *testing.T) {
	c := Defaults()
	c.Consul.Address = "https://user:hunter2@consul:8501"
	if got := c.Redacted().Consul.Address; got != "https://REDACTED@consul:8501" {
		t.Errorf("Redacted: %s", got)
	}
}

// FuzzParse: no bytes make the reader panic, and what it accepts it accepts again as it writes it.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			src, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(src)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		cfg, faults := Parse("fuzz.yaml", src)
		if (cfg == nil) != (faults.Errors() > 0) {
			t.Fatalf("config %v with faults %s", cfg, faults.Error())
		}
	})
}

// load reads a file under the name it has in its folder, so that expected texts do not depend on where it is.
func load(t *testing.T, file string) (*Config, Faults) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return Parse(filepath.Base(file), src)
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (go test -update rewrites it):\n%s", file, diff)
	}
}
