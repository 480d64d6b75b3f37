package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvip/kvip/loadtest/floor"
)

// sample is a report in which kvip costs 1.2, 2 and 1.4 times the floor in its three rounds, and 1, 1.6 and 1.3 times without
// what it uses anyhow: 2 us at that rate.
func sample() *report {
	answer := floor.Answer{Response: []byte("....")}
	r := newReport(options{Topics: 100, Partitions: 6, Clients: 64}, operations[:1], &stand{
		answers: []floor.Answer{answer, answer, answer},
		targets: []target{{name: "kvip"}, {name: "floor"}},
	})
	r.Idle["kvip"] = 0.002
	for round, pair := range [][2]float64{{12, 10}, {10, 5}, {28, 20}} {
		r.Cells = append(r.Cells,
			cell{Operation: "kept-all", Target: "kvip", Round: round + 1, CPUMicros: pair[0], Rate: 1000},
			cell{Operation: "kept-all", Target: "floor", Round: round + 1, CPUMicros: pair[1], Rate: 1000})
	}
	return r
}

func TestRatiosAreTakenWithinEachRound(t *testing.T) {
	got, ok := sample().ratio("kept-all", "kvip", "floor", cpuOf)
	if want := (spread{1.4, 1.2, 2}); !ok || got != want {
		t.Errorf("got %v %v, want %v: the ratio of medians would be 1.2", got, ok, want)
	}
	if got := spreadOf([]float64{4, 1, 3, 2}); got != (spread{2.5, 1, 4}) {
		t.Errorf("spread of 1 to 4 is %v", got)
	}
}

func TestTheGoalIsJudgedByTheMedianRatio(t *testing.T) {
	if err := sample().judge(1.3); err != nil {
		t.Error(err)
	}
	if err := sample().judge(1.2); err == nil || !strings.Contains(err.Error(), "kept-all 1.30") {
		t.Errorf("limit 1.2: %v", err)
	}
	r := sample()
	r.Cells = r.Cells[:1]
	if err := r.judge(1.5); err == nil {
		t.Error("a ratio that was not measured passed")
	}
}

func TestTheReportIsATableAndTheSameAsJSON(t *testing.T) {
	var out bytes.Buffer
	r := sample()
	r.print(&out)
	for _, want := range []string{"KVIP/FLOOR", "12.0 (10.0-28.0)", "1.40 (1.20-2.00)", "1.30 (1.00-1.60)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	path := filepath.Join(t.TempDir(), "bench.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(raw, &back); err != nil || len(back.Cells) != 6 || back.Cells[5].CPUMicros != 20 {
		t.Errorf("read back %+v, %v", back.Cells, err)
	}
}

func TestUnknownOperationsAreNamed(t *testing.T) {
	if _, err := chooseOperations([]string{"kept-all", "kept-none"}); err == nil || !strings.Contains(err.Error(), `"kept-none": one of kept-all, kept-one, storm-all, storm-one`) {
		t.Errorf("got %v", err)
	}
}
