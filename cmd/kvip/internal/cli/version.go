package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker (see Makefile).
var (
	version = "dev"
	commit  = ""
)

type versionCommand struct{}

// libraries are those that decide what kvip does on the wire.
var libraries = []struct{ name, path string }{
	{"gnet", "github.com/panjf2000/gnet/v2"},
	{"kmsg", "github.com/twmb/franz-go/pkg/kmsg"},
	{"consul", "github.com/hashicorp/consul/api"},
}

// Run prints one fact a line.
func (versionCommand) Run(s streams) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	fmt.Fprintf(s.out, "%-8s%s\n", "kvip", version)
	fmt.Fprintf(s.out, "%-8s%s\n", "commit", revision(info))
	fmt.Fprintf(s.out, "%-8s%s %s/%s\n", "go", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, l := range libraries {
		fmt.Fprintf(s.out, "%-8s%s\n", l.name, moduleVersion(info, l.path))
	}
	return nil
}

// revision is the commit that the linker was told, else the one that the go command saw.
func revision(info *debug.BuildInfo) string {
	if commit != "" {
		return commit
	}
	rev, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	return rev + dirty
}

func moduleVersion(info *debug.BuildInfo, path string) string {
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}
