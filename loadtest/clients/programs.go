package clients

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/kvip/kvip/loadtest/lab"
)

// java is the Apache client: java/common compiled with what its release differs in, against its own jar.
type java struct {
	version  string
	before20 bool   // compiled with java/before-2.0 instead of java/since-2.4
	consumer string // a consumer setting, name=value
}

// maven takes turns: its local repository is not made for two writers.
var maven sync.Mutex

func (j java) install(ctx context.Context) (command, env []string, err error) {
	const jdk = "openjdk-17-jdk-headless"
	runtime, err := lab.EnsureCommand(ctx, "java", jdk)
	if err != nil {
		return nil, nil, err
	}
	maven.Lock()
	jars, err := lab.MavenJars(ctx, "kafka-clients-"+j.version,
		"org.apache.kafka:kafka-clients:"+j.version, "org.slf4j:slf4j-simple:1.7.36")
	maven.Unlock()
	if err != nil {
		return nil, nil, err
	}
	release := "since-2.4"
	if j.before20 {
		release = "before-2.0"
	}
	sources, digest, err := sources("java/common/*.java", "java/"+release+"/*.java")
	if err != nil {
		return nil, nil, err
	}
	classes, err := lab.Cached(ctx, "client-java-"+j.version+"-"+digest, func(ctx context.Context, dir string) error {
		javac, err := lab.EnsureCommand(ctx, "javac", jdk)
		if err != nil {
			return err
		}
		// Kafka 4's clients need Java 11; what is compiled for it runs on every later one.
		args := append([]string{"--release", "11", "-nowarn", "-cp", jars + "/*", "-d", dir}, sources...)
		_, err = lab.RunCommand(ctx, "", nil, javac, args...)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	command = []string{runtime, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:-UsePerfData",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-cp", jars + "/*:" + classes, "Job"}
	if j.consumer != "" {
		command = append(command, "--consumer", j.consumer)
	}
	return command, nil, nil
}

// python is a program of python/ in a virtual environment of its own.
type python struct {
	program      string // in python/
	requirements string // in python/requirements/
}

func (p python) install(ctx context.Context) (command, env []string, err error) {
	python3, err := lab.EnsureCommand(ctx, "python3", "python3", "python3-venv")
	if err != nil {
		return nil, nil, err
	}
	// An environment belongs to the Python that made it.
	version, err := lab.RunCommand(ctx, "", nil, python3, "-c", "import sys; print(sys.version, sys.base_prefix)")
	if err != nil {
		return nil, nil, err
	}
	requirements, digest, err := sources("python/requirements/" + p.requirements)
	if err != nil {
		return nil, nil, err
	}
	name := fmt.Sprintf("client-%s-%s-%.4x", p.requirements, digest, sha256.Sum256(version))
	venv, err := lab.Cached(ctx, name, func(ctx context.Context, dir string) error {
		if _, err := lab.RunCommand(ctx, "", nil, python3, "-c", "import ensurepip"); err != nil { // Debian ships it apart
			if err := lab.EnsureDebian(ctx, "python3-venv"); err != nil {
				return err
			}
		}
		if _, err := lab.RunCommand(ctx, "", nil, python3, "-m", "venv", dir); err != nil {
			return err
		}
		_, err := lab.RunCommand(ctx, "", nil, filepath.Join(dir, "bin", "python"), "-m", "pip",
			"install", "--quiet", "--disable-pip-version-check", "--no-input", "-r", requirements[0])
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	programs, _, err := sources("python/" + p.program)
	if err != nil {
		return nil, nil, err
	}
	// -B: leaves no __pycache__ among the sources.
	return []string{filepath.Join(venv, "bin", "python"), "-B", programs[0]}, nil, nil
}

// node is node/kafkajs.js with the modules of node/package-lock.json.
type node struct{}

func (node) install(ctx context.Context) (command, env []string, err error) {
	nodejs, err := lab.EnsureCommand(ctx, "node", "nodejs")
	if err != nil {
		return nil, nil, err
	}
	packages, digest, err := sources("node/package*.json")
	if err != nil {
		return nil, nil, err
	}
	modules, err := lab.Cached(ctx, "client-kafkajs-"+digest, func(ctx context.Context, dir string) error {
		npm, err := lab.EnsureCommand(ctx, "npm", "npm")
		if err != nil {
			return err
		}
		if err := copyFiles(dir, packages...); err != nil {
			return err
		}
		_, err = lab.RunCommand(ctx, dir, nil, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	programs, _, err := sources("node/kafkajs.js")
	if err != nil {
		return nil, nil, err
	}
	return []string{nodejs, programs[0]}, []string{"NODE_PATH=" + filepath.Join(modules, "node_modules")}, nil
}

func copyFiles(dir string, files ...string) error {
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// golang is a package of the module in go/, which is apart so that no library enters the product's go.mod.
type golang struct {
	pkg     string
	modfile string // instead of go.mod
}

func (g golang) install(ctx context.Context) (command, env []string, err error) {
	sources, digest, err := sources("go/*.mod", "go/*.sum", "go/job/*.go", "go/"+g.pkg+"/*.go")
	if err != nil {
		return nil, nil, err
	}
	modfile := "go.mod"
	if g.modfile != "" {
		modfile = g.modfile
	}
	name := fmt.Sprintf("client-go-%s-%s-%s-%s", g.pkg, modfile, digest, runtime.Version())
	built, err := lab.Cached(ctx, name, func(ctx context.Context, dir string) error {
		tool, err := lab.EnsureCommand(ctx, "go", "golang-go")
		if err != nil {
			return err
		}
		_, err = lab.RunCommand(ctx, filepath.Dir(sources[0]), []string{"GOWORK=off", "GOFLAGS=-mod=readonly"}, tool,
			"build", "-modfile="+modfile, "-o", filepath.Join(dir, g.pkg), "./"+g.pkg)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return []string{filepath.Join(built, g.pkg)}, nil, nil
}

// kcat is kcat/kcat.sh around Debian's kcat.
type kcat struct{}

func (kcat) install(ctx context.Context) (command, env []string, err error) {
	if _, err := lab.EnsureCommand(ctx, "kcat", "kcat"); err != nil {
		return nil, nil, err
	}
	programs, _, err := sources("kcat/kcat.sh")
	if err != nil {
		return nil, nil, err
	}
	return []string{"bash", programs[0]}, nil, nil
}

// sources returns the files that match patterns below this package's folder, with a digest of names and content.
func sources(patterns ...string) (files []string, digest string, err error) {
	folder, err := folder()
	if err != nil {
		return nil, "", err
	}
	sum := sha256.New()
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil || len(found) == 0 {
			return nil, "", fmt.Errorf("no file %s in %s (%w)", pattern, folder, errors.Join(err, os.ErrNotExist))
		}
		for _, f := range found {
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, "", err
			}
			fmt.Fprintf(sum, "%s %d\n", filepath.Base(f), len(b))
			sum.Write(b)
		}
		files = append(files, found...)
	}
	return files, fmt.Sprintf("%.6x", sum.Sum(nil)), nil
}

// folder finds loadtest/clients from the working directory upwards: tests run in their own package's folder.
func folder() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		candidate := filepath.Join(dir, "loadtest", "clients")
		if _, err := os.Stat(filepath.Join(candidate, "clients.go")); err == nil {
			return candidate, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("loadtest/clients not found from %s upwards: run inside kvip's source tree", start)
		}
	}
}
