# Everything that a developer or CI runs. `make help` lists the targets; each says what it needs.

SHELL       := /bin/bash -o pipefail
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT   := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
CLI      := github.com/kvip/kvip/cmd/kvip/internal/cli
BUILD    := go build -trimpath -ldflags '-s -w -X $(CLI).version=$(VERSION) -X $(CLI).commit=$(COMMIT)'

# Where the Go code is.
GO       := ./cmd ./protocol ./backends ./healthcheck ./discovery ./loadtest

# Tests that start real Kafka, ZooKeeper, Consul or client libraries: loadtest/lab's own, and all that have the tag e2e.
# The lab installs or names what it needs beyond Go: Java, Maven, Python, Node, kcat.
LAB      := ./loadtest/lab
E2E       = $(sort $(dir $(shell grep -rl --include='*_test.go' '^//go:build e2e' $(GO))))
UNIT      = $(shell go list ./... | grep -v '/loadtest/lab$$')
TOOL     := go tool -modfile=.ci/tools/go.mod

FUZZTIME ?= 20000x
SOAKTIME ?= 10m
ROUNDS   ?= 3
# Tests in which something dies, by their names.
CHAOS    := Losing|Kill|Dies|Dead|Lost|Restart|Cold|Frozen|Survives
# Rows of the chaos table to run, by their names; all by default.
ROW      ?=
ARGS     ?=

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/kvip, one static binary
	CGO_ENABLED=0 $(BUILD) -o bin/kvip ./cmd/kvip

.PHONY: run
run: build ## Build and run the demo: a cluster, a VIP, and a client's output through it (ARGS="--listen 127.0.0.1:0")
	@exec bin/kvip demo $(ARGS)

.PHONY: test
test: check race fuzz e2e ## Everything that CI runs: checks, unit tests under race, short fuzz, real Kafka, Consul and clients

.PHONY: check
check: ## Formatting, go vet and staticcheck
	@unformatted=$$(gofmt -l $(GO)); test -z "$$unformatted" || { echo "not gofmt-ed (gofmt -w):" $$unformatted; exit 1; }
	go vet ./...
	go vet -tags e2e ./...
	$(TOOL) staticcheck -checks inherit,-ST1005,-ST1013 -tags e2e ./...

.PHONY: unit
unit: ## Unit tests, without real brokers
	go test $(UNIT)

.PHONY: race
race: ## Unit tests under the race detector
	@.ci/need gcc gcc libc6-dev
	go test -race $(UNIT)

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZTIME (20000x: inputs; or a time, such as 1m)
	@.ci/fuzz $(FUZZTIME) $(GO)

.PHONY: e2e
e2e: ## Real Kafka, Consul and client libraries, short form
	go test -tags e2e -p 1 -count 1 -timeout 28m $(LAB) $(E2E)

.PHONY: matrix
matrix: ## Every client library and release, full form
	KVIP_FULL=1 go test -tags e2e -p 1 -count 1 -timeout 3h $(E2E)

.PHONY: chaos
chaos: ## The chaos table of docs/CHAOS.md, 4 minutes a row (ROW=freeze: that one alone), then whatever dies elsewhere, ROUNDS (3) times
	KVIP_FULL=1 go test -tags e2e -count 1 -timeout 3h -v -run 'TestChaos/$(ROW)$$' ./cmd/kvip/internal/e2e
	@test -n '$(ROW)' || KVIP_FULL=1 go test -tags e2e -p 1 -count $(ROUNDS) -timeout 3h -run '$(CHAOS)' $(LAB) $(E2E)

.PHONY: soak
soak: build ## The demo under load for SOAKTIME (10m): no wrong answer, no growth
	.ci/soak $(SOAKTIME)

.PHONY: bench
bench: ## CPU per request: kvip, the floor, a real broker, HAProxy, interleaved in one run (ARGS="--rounds 3")
	go run ./loadtest/bench $(ARGS)

.PHONY: golden
golden: ## Ask a real Kafka 4.3.1 everything that kvip answers, and write the golden files
	go test -tags golden -count 1 -run TestMakeGoldens ./protocol/answer

.PHONY: lint
lint: ## golangci-lint as .golangci.yml says (built the first time, 2 minutes on 2 cores)
	$(TOOL) golangci-lint run ./...

.PHONY: clean
clean: ## Remove what build made
	rm -rf bin
