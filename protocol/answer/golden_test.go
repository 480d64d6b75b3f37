package answer_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kvip/kvip/backends/snapshot"
	"github.com/kvip/kvip/protocol/answer"
	"github.com/kvip/kvip/protocol/answer/answertest"
	"github.com/kvip/kvip/protocol/wire"
)

// exchange is one line of a golden file.
type exchange struct {
	name      string
	req, resp []byte
}

func goldens(t *testing.T, path string) (es []exchange) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		fields := strings.Split(lines.Text(), "\t")
		e := exchange{name: fields[0]}
		for i, dst := range []*[]byte{&e.req, &e.resp} {
			if *dst, err = hex.DecodeString(fields[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		es = append(es, e)
	}
	if err := lines.Err(); err != nil || len(es) == 0 {
		t.Fatal(len(es), err)
	}
	return es
}

// decoded returns request and response of an exchange.
func (e exchange) decoded(t *testing.T) (kmsg.Request, kmsg.Response) {
	h, body, fault := wire.ParseHeader(e.req, 16)
	if fault != wire.OK {
		t.Fatal(e.name, fault)
	}
	req := kmsg.RequestForKey(h.Key)
	req.SetVersion(h.Version)
	if err := req.ReadFrom(body); err != nil {
		t.Fatal(e.name, err)
	}
	resp, err := answertest.Decode(req, e.resp)
	if err != nil {
		t.Fatal(e.name, err)
	}
	return req, resp
}

// setOf builds the answers from the newest versions among the exchanges, as a refresh does.
func setOf(t *testing.T, es []exchange) *answer.Set {
	var meta *kmsg.MetadataResponse
	var desc *kmsg.DescribeClusterResponse
	apis := &snapshot.APIs{}
	for _, e := range es {
		_, resp := e.decoded(t)
		switch r := resp.(type) {
		case *kmsg.MetadataResponse:
			if e.name == "Metadata v13 all" {
				meta = r
			}
		case *kmsg.DescribeClusterResponse:
			if e.name == "DescribeCluster v2 fenced" {
				desc = r
			}
		case *kmsg.ApiVersionsResponse:
			if e.name == "ApiVersions v4 table" {
				apis.Keys, apis.SupportedFeatures = r.ApiKeys, r.SupportedFeatures
				apis.FinalizedFeatures, apis.FinalizedFeaturesEpoch = r.FinalizedFeatures, r.FinalizedFeaturesEpoch
			}
		}
	}
	slices.SortFunc(apis.Keys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey - b.ApiKey) })
	var reader snapshot.Reader
	cand, fault := reader.Read(snapshot.Encoded{Version: meta.Version, Body: meta.AppendTo(nil)},
		&snapshot.Encoded{Version: desc.Version, Body: desc.AppendTo(nil)}, true, nil, snapshot.Rules{ClusterID: *meta.ClusterID})
	if fault != nil {
		t.Fatal(fault)
	}
	return answer.Build(answer.Input{Snapshot: cand.Snapshot, APIs: apis}, nil)
}

// forwarded says whether a case is a broker's to answer.
func forwarded(name string, oneDown bool) bool {
	for _, s := range []string{"bad name", "dots", "250 characters", "unknown", "operations", "id and name", "controllers"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return oneDown && strings.HasPrefix(name, "Metadata v0 ")
}

func TestAnswersAreABrokers(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.golden")
	if len(files) < 2 {
		t.Fatalf("golden files %v: make them with `make golden`", files)
	}
	for _, path := range files {
		es := goldens(t, path)
		set := setOf(t, es)
		for _, e := range es {
			h, body, _ := wire.ParseHeader(e.req, 16)
			out := answer.NewOut(1)
			verdict, fault := set.Answer(out, &answer.Request{Header: h, Body: body, TagLimit: 16})
			if forwarded(e.name, strings.Contains(path, "one-down")) {
				if verdict != answer.Forward {
					t.Errorf("%s: %s: verdict %d %v, want it forwarded", path, e.name, verdict, fault)
				}
				continue
			}
			if verdict != answer.Answered {
				t.Errorf("%s: %s: verdict %d %v, want an answer", path, e.name, verdict, fault)
				continue
			}
			req, want := e.decoded(t)
			got, err := answertest.Decode(req, bytes.Join(out.Parts(nil), nil))
			if err != nil {
				t.Errorf("%s: %s: %v", path, e.name, err)
				continue
			}
			if diff := answertest.Diff(want, got); diff != "" {
				t.Errorf("%s: %s (-broker +kvip):\n%s", path, e.name, diff)
			}
		}
	}
}
