package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DefaultKafka is the version that [StartKafka] runs when none is given.
const DefaultKafka = "4.3.1"

// kafkaBuild says how one version of Kafka is fetched and run. To add a version, add a row to kafkaBuilds.
type kafkaBuild struct {
	artifacts []string // Maven coordinates, group:artifact:version
	logConfig string   // name of the log4j configuration file
	zookeeper bool     // runs on ZooKeeper, not KRaft
}

var kafkaBuilds = map[string]kafkaBuild{
	"4.4.0": kraftBuild("4.4.0"),
	"4.3.1": kraftBuild("4.3.1"),
	"3.9.1": kraftBuild("3.9.1"),
	"1.1.1": {
		artifacts: []string{"org.apache.kafka:kafka_2.12:1.1.1", "org.slf4j:slf4j-log4j12:1.7.25"},
		logConfig: "log4j.properties",
		zookeeper: true,
	},
}

func kraftBuild(version string) kafkaBuild {
	return kafkaBuild{
		artifacts: []string{
			"org.apache.kafka:kafka_2.13:" + version,
			"org.apache.logging.log4j:log4j-slf4j-impl:2.24.3", "org.apache.logging.log4j:log4j-core:2.24.3",
		},
		logConfig: "log4j2.properties",
	}
}

func buildFor(version string, zookeeper bool) (kafkaBuild, error) {
	b, ok := kafkaBuilds[version]
	var known []string
	for v, b := range kafkaBuilds {
		if b.zookeeper == zookeeper {
			known = append(known, v)
		}
	}
	if !ok || b.zookeeper != zookeeper {
		slices.Sort(known)
		return b, fmt.Errorf("lab: no Kafka %q to start this way, only %s; kafkaBuilds in loadtest/lab/kafka_jars.go takes a new one",
			version, strings.Join(known, ", "))
	}
	return b, nil
}

const jre, maven = "openjdk-17-jre-headless", "maven"

// MavenJars returns a directory of the cache with the jars of the Maven artifacts (group:artifact:version) and all that
// they depend on at run time; its name starts with name.
func MavenJars(ctx context.Context, name string, artifacts ...string) (string, error) {
	var pom strings.Builder
	pom.WriteString(`<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>` +
		"<groupId>kvip.lab</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging><dependencies>\n")
	for _, a := range artifacts {
		f := strings.Split(a, ":")
		if len(f) != 3 || strings.ContainsAny(a, "<>&/ ") {
			return "", fmt.Errorf("lab: Maven artifact %q is not group:artifact:version", a)
		}
		fmt.Fprintf(&pom, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n", f[0], f[1], f[2])
	}
	pom.WriteString("</dependencies></project>\n")
	return Cached(ctx, name+"-"+fingerprint(pom.String()), func(ctx context.Context, dir string) error {
		mvn, err := EnsureCommand(ctx, "mvn", jre, maven)
		if err != nil {
			return err
		}
		file := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(file, []byte(pom.String()), 0o644); err != nil {
			return err
		}
		unlock, err := lockFile(ctx, "maven") // its local repository is not made for two writers
		if err != nil {
			return err
		}
		defer unlock()
		_, err = RunCommand(ctx, dir, nil, mvn, "-q", "-B", "-f", file,
			"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+dir)
		return err
	})
}

func fingerprint(parts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))[:12]
}

// javaApp is what it takes to run a class of one version of Kafka.
type javaApp struct {
	version   string
	build     kafkaBuild
	java      string
	classPath string
	archive   string // class data archive (JEP 350), empty for none
}

func newJavaApp(ctx context.Context, version string, zookeeper bool) (*javaApp, error) {
	build, err := buildFor(version, zookeeper)
	if err != nil {
		return nil, err
	}
	java, err := EnsureCommand(ctx, "java", jre)
	if err != nil {
		return nil, err
	}
	dir, err := MavenJars(ctx, "kafka-"+version, build.artifacts...)
	if err != nil {
		return nil, err
	}
	jars, err := filepath.Glob(filepath.Join(dir, "*.jar"))
	if err != nil || len(jars) == 0 {
		return nil, fmt.Errorf("lab: no jars in %s: delete it, then it is built again", dir)
	}
	slices.Sort(jars) // an archive is valid for this order only
	return &javaApp{version: version, build: build, java: java, classPath: strings.Join(jars, ":")}, nil
}

// archived returns a with a class data archive, which takes a third off a cluster's start (measured: 4.0 s to 3.0 s for
// three nodes on two cores). It is recorded once per Java and jars from a node that starts, makes a topic and stops. A
// Java that cannot record one is run without.
func (a *javaApp) archived(ctx context.Context) (*javaApp, error) {
	java, err := filepath.EvalSymlinks(a.java)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	st, err := os.Stat(java)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	// A new Java refuses an old one's archive.
	key := fingerprint(java, st.ModTime().String(), fmt.Sprint(st.Size()), a.classPath, os.Getenv("JAVA_HOME"))
	dir, err := Cached(ctx, "kafka-"+a.version+"-classes-"+key, func(ctx context.Context, dir string) error {
		err := a.record(ctx, filepath.Join(dir, archiveName))
		if err == nil || ctx.Err() != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "why-there-is-none"), []byte(err.Error()), 0o644)
	})
	if err != nil {
		return nil, err
	}
	with := *a
	if file := filepath.Join(dir, archiveName); isFile(file) {
		with.archive = file
	}
	return &with, nil
}

const archiveName = "classes.jsa"

func (a *javaApp) record(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("not done after 2 minutes"))
	defer cancel()
	cfg := KafkaConfig{Version: a.version, Nodes: 1, JVMArgs: []string{"-XX:ArchiveClassesAtExit=" + file}}
	k, err := startKafka(ctx, cfg, a.build.zookeeper, a)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }()
	if err := k.CreateTopic(ctx, "recorded", 1, 1); err != nil {
		return err
	}
	if err := k.Node(0).Stop(ctx); err != nil {
		return err
	}
	if !isFile(file) {
		return fmt.Errorf("no archive was written by Java%s", k.Node(0).LogTail())
	}
	return nil
}

// command is the argument list of a JVM that runs class.
func (a *javaApp) command(jvm []string, class string, args ...string) []string {
	all := []string{"-XX:-UsePerfData"} // leaves no /tmp/hsperfdata
	if a.archive != "" {
		all = append(all, "-XX:SharedArchiveFile="+a.archive)
	}
	all = append(all, jvm...)
	all = append(all, "-cp", a.classPath, class)
	return append(all, args...)
}

// fastJVM starts quickly and stays small; productionJVM is what Kafka's own start script sets.
var (
	fastJVM       = []string{"-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	productionJVM = []string{"-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
		"-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"}
)

// formatted returns a storage directory formatted by Kafka's StorageTool with args, which every node of a new cluster
// gets a copy of. Formatting costs a JVM and a second; the copy is kept.
func (a *javaApp) formatted(ctx context.Context, args []string) (string, error) {
	name := "kafka-" + a.version + "-format-" + fingerprint(append([]string{a.classPath}, args...)...)
	return Cached(ctx, name, func(ctx context.Context, dir string) error {
		props := filepath.Join(dir, "server.properties")
		if err := writeProperties(props, map[string]string{
			"process.roles": "broker,controller", "node.id": "1", "controller.quorum.voters": "1@127.0.0.1:9093",
			"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", "controller.listener.names": "CONTROLLER",
			"log.dirs": filepath.Join(dir, "data"),
		}); err != nil {
			return err
		}
		all := append([]string{"format", "-t", newUUID(), "-c", props}, args...)
		_, err := RunCommand(ctx, dir, nil, a.java, a.command([]string{"-XX:TieredStopAtLevel=1"}, "kafka.tools.StorageTool", all...)...)
		return err
	})
}
