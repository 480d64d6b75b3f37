package cli

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestVersionOfABuiltBinary: the linker's version and commit, and the modules' versions, are in what users run.
func TestVersionOfABuiltBinary(t *testing.T) {
	const pkg = "github.com/kvip/kvip/cmd/kvip"
	bin := filepath.Join(t.TempDir(), "kvip")
	ldflags := "-X " + pkg + "/internal/cli.version=v9.8.7 -X " + pkg + "/internal/cli.commit=abc1234"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "-ldflags", ldflags, pkg).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), bin, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^kvip    v9\.8\.7
commit  abc1234
go      go1\.\S+ linux/\S+
gnet    v2\.\S+
kmsg    v1\.\S+
consul  v1\.\S+
$`)
	if !want.Match(out) {
		t.Errorf("kvip version printed\n%s", out)
	}
}
