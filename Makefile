# SPDX-License-Identifier: Apache-2.0
#
# `make help` lists the targets. They require Go, and a C compiler for the race detector. Tools are
# pinned in their own modules under internal/tools and built from source into .tools. A target
# builds only the tools that it uses.
#
# All builds and tests use the same compiler flags, without -trimpath. That flag would compile some
# two thousand packages again, which a plain `go test` and an editor cannot use. -s -w are flags of
# the linker only.

SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help

GO      = $(or $(shell command -v go),$(error Go 1.26 or newer is needed))
TOOLS  := .tools
# No version control stamp: it would relink all programs at each commit, and the build would fail if
# the checkout belongs to another user.
# VERSION is for a release (make build VERSION=0.2.0). Without it, the version is "dev".
# otelcol-gpuflight has its version from dist.version in builder-config.yaml.
LDFLAGS := -s -w $(if $(VERSION),-X github.com/gpuflight/gpuflight/internal/version.linked=$(VERSION))
FLAGS  := -buildvcs=false -ldflags "$(LDFLAGS)"
SLOWLY := scripts/progress

# The race detector recompiles all imports of a package, so only our libraries use it. The Collector
# is tested as the shipped binary.
# go.work lists the modules; ./... is the root module: cupti, internal, sdk and semconv.
MODULES   := $(shell sed -n 's,^\t\./,./,p' go.work)
LIBRARIES := ./... $(patsubst %,%/...,$(filter-out ./cmd/otelcol-gpuflight ./cmd/otelcol-gpuflight-agent ./test,$(MODULES)))
# The race detector and the CUPTI core require C. go env prints 0 if there is no C compiler.
CGO        = $(filter 1,$(shell $(GO) env CGO_ENABLED))
RACE       = $(if $(CGO),-race,$(warning no C compiler: testing without the race detector))

FUZZTIME ?= 30s

# Paths of the binaries for their tests. With REQUIRE a missing binary is a failure; a plain
# `go test` skips.
BINARIES = GPUFLIGHT_COLLECTOR=$(CURDIR)/bin/otelcol-gpuflight GPUFLIGHT_AGENT=$(CURDIR)/bin/otelcol-gpuflight-agent GPUFLIGHT_CLI=$(CURDIR)/bin/gpuflight \
	GPUFLIGHT_JAEGER=$(CURDIR)/$(TOOLS)/jaeger GPUFLIGHT_OCB=$(CURDIR)/$(TOOLS)/ocb \
	GPUFLIGHT_PROMETHEUS=$(CURDIR)/$(TOOLS)/prometheus GPUFLIGHT_KAFKA=$(CURDIR)/$(TOOLS)/kafka/kafka \
	GPUFLIGHT_VERSITYGW=$(CURDIR)/$(TOOLS)/versitygw GPUFLIGHT_CHDB=$(CURDIR)/$(TOOLS)/chdb/chdb GPUFLIGHT_PERFETTO=$(CURDIR)/$(TOOLS)/perfetto/perfetto GPUFLIGHT_PYTHON=$(CURDIR)/$(TOOLS)/python/python GPUFLIGHT_GOVULNCHECK=$(CURDIR)/$(TOOLS)/govulncheck GPUFLIGHT_INJECT=$(CURDIR)/bin/libgpuflight.so GPUFLIGHT_REQUIRE=1

.PHONY: demo
demo: build ## Show recordings of real GPUs in the web UI; ctrl-C ends it
	@bin/gpuflight view examples/recordings test/gpu/causes/recordings/slow_layer.otlp.jsonl.gz

.PHONY: build
build: ## Build bin/otelcol-gpuflight, bin/gpuflight and bin/libgpuflight.so
	@$(SLOWLY) "compiling bin/otelcol-gpuflight (two to three minutes the first time)" $(GO) build $(FLAGS) -o bin/otelcol-gpuflight ./cmd/otelcol-gpuflight
	@$(GO) build $(FLAGS) -o bin/otelcol-gpuflight-agent ./cmd/otelcol-gpuflight-agent
	@$(GO) build $(FLAGS) -o bin/gpuflight ./cmd/gpuflight
	@$(if $(CGO),$(GO) build $(FLAGS) -buildmode=c-shared -o bin/libgpuflight-recorder.so ./cupti/inject && rm -f bin/libgpuflight-recorder.h && cupti/inject/loader/build bin/libgpuflight.so,echo "no C compiler: bin/libgpuflight.so is not built" >&2)

.PHONY: wheel
wheel: ## Build the Python wheel into dist, with programs for glibc 2.28
	scripts/wheel dist

# Its module is not in the workspace, so that the versions of Kubernetes' libraries bind no other program.
.PHONY: k8s
k8s: ## Build bin/otelcol-gpuflight-k8s, the Collector of the image; takes minutes and 4 GB of memory
	@$(SLOWLY) "compiling bin/otelcol-gpuflight-k8s" env GOWORK=off $(GO) build -C cmd/otelcol-gpuflight-k8s $(FLAGS) -o $(CURDIR)/bin/otelcol-gpuflight-k8s .

# The programs that the tests of the binaries need, besides ours.
SERVERS := $(TOOLS)/jaeger $(TOOLS)/ocb $(TOOLS)/prometheus $(TOOLS)/kafka/kafka $(TOOLS)/versitygw $(TOOLS)/chdb/chdb $(TOOLS)/perfetto/perfetto $(TOOLS)/python/python $(TOOLS)/govulncheck

# Tests often wait, and leave a processor to the compiler. The programs of bin are not built meanwhile,
# because some tests of the libraries start them.
.PHONY: test
test: ## Run all tests
	$(MAKE) -k -j 2 test-unit servers
	$(MAKE) test-e2e

.PHONY: servers
servers: $(SERVERS)

# Three packages at a time, as below. Lint vets the same packages.
.PHONY: test-unit
test-unit: $(TOOLS)/gpux ## Test the libraries, with the race detector
	GPUX_HOME=$(CURDIR)/$(TOOLS)/gpux $(GO) test -p 3 $(RACE) -vet=off -timeout 30m $(LIBRARIES)

.PHONY: test-e2e
test-e2e: build servers ## Test the binaries, with a real Jaeger, Prometheus, Kafka, S3 and ClickHouse engine
	$(MAKE) -j 2 run-e2e run-kubernetes

# Three packages at a time: most of these tests wait for a server, a timer or a restart.
.PHONY: run-e2e
run-e2e:
	$(BINARIES) $(GO) test -p 3 -vet=off -count 1 -timeout 20m ./test/... ./examples/compose

.PHONY: test-kubernetes
test-kubernetes: build ## Test the Helm chart and the example for the OpenTelemetry Operator
	$(MAKE) run-kubernetes

# A module outside go.work: Helm and the API server are in no other build.
.PHONY: run-kubernetes
run-kubernetes:
	$(BINARIES) $(TOOLGO) test -C test/kubernetes -count 1 -timeout 10m ./...

# GPUFLIGHT_SOAK=1 enables all long tests. Some need root (eBPF) and skip without it.
.PHONY: soak
soak: build servers ## Run the long tests (GPUFLIGHT_SOAK=1) and the mutation tests (test/mutation), for hours
	GPUFLIGHT_SOAK=1 $(GO) test -count 1 -p 1 -timeout 2h $(LIBRARIES)
	GPUFLIGHT_SOAK=1 $(BINARIES) $(GO) test -p 1 -count 1 -timeout 6h ./test/...
	$(GO) run ./test/mutation

.PHONY: bench
bench: build $(TOOLS)/kafka/kafka $(TOOLS)/chdb/chdb $(TOOLS)/gpux $(TOOLS)/gpuxbench/python ## Measure our components against contrib's on the same data
	$(GO) run ./test/bench/spans
	$(GO) run ./test/bench/nvml
	$(GO) run ./test/bench
	$(GO) run ./test/bench/fleet
	$(GO) run ./test/bench/clickhouse
	$(GO) run ./test/bench/ui
	$(GO) run ./test/bench/store
	$(GO) build $(FLAGS) -o bin/gpux ./examples/gpux/cmd/gpux && GPUX_HOME=$(CURDIR)/$(TOOLS)/gpux $(GO) run ./test/bench/gpux
	$(GO) test -run - -bench Launch -benchtime 7x ./receiver/cudareceiver/internal/probe
	$(GO) test -run - -bench Lines -benchtime 20x ./internal/recording/cubin

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	scripts/fuzz $(FUZZTIME) $(LIBRARIES)

# Without cmd/otelcol-gpuflight, which is generated: checking its imports would take most of the
# time.
.PHONY: lint
lint: prose $(TOOLS)/golangci-lint ## Check formatting, import rules, common mistakes and the language
	$(TOOLS)/golangci-lint run $(LIBRARIES) ./test/...
	CGO_ENABLED=0 $(GO) build ./internal/... ./sdk/... ./cmd/gpuflight # the SDK also builds without cgo
	CGO_ENABLED=0 $(GO) test ./internal/store/duckstore

.PHONY: prose
prose: $(TOOLS)/vale ## Check the language of documents and comments
	scripts/prose $(CURDIR)/$(TOOLS)/vale

# This takes a minute and 5.6 GB of memory for our own module.
.PHONY: govulncheck
govulncheck: $(TOOLS)/govulncheck ## Check all modules for known vulnerabilities; skips if the database is unreachable
	scripts/govulncheck $(CURDIR)/$(TOOLS)/govulncheck . cmd/gpuflight cmd/otelcol-gpuflight cmd/otelcol-gpuflight-agent cmd/otelcol-gpuflight-k8s $(patsubst %/go.mod,%,$(wildcard internal/tools/*/go.mod))

.PHONY: generate
generate: $(TOOLS)/ocb $(TOOLS)/mdatagen ## Regenerate files from manifests and metadata
	for m in builder-config.yaml builder-agent.yaml builder-k8s.yaml; do $(TOOLS)/ocb --config $$m --skip-compilation --skip-get-modules && scripts/distribution-module $$m; done
	PATH="$(CURDIR)/$(TOOLS):$$PATH" $(GO) generate $(LIBRARIES)

# The bundle is committed, so that a build of the Collector needs no Node.
.PHONY: ui
ui: ## Build the web UI into extension/gpuqueryextension/ui/dist; requires Node
	scripts/ui build

.PHONY: tidy
tidy: ## Tidy the go.mod of every module
	scripts/tidy . $(MODULES) ./test/kubernetes

.PHONY: check
check: ## Check that generated files are current
	scripts/check-generated

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: clean
clean: ## Remove bin and .tools
	rm -rf bin dist .tools

# The tests of examples/gpux need ONNX Runtime. Without pip they skip.
$(TOOLS)/gpux: examples/gpux/internal/ortlib/ortlib.go
	@mkdir -p $@
	@GPUX_HOME=$(CURDIR)/$@ $(GO) run ./examples/gpux/cmd/gpux runtime install >/dev/null || echo "ONNX Runtime is not installed: tests of examples/gpux skip" >&2
	@touch $@

# The tools. Their modules are not in the workspace.
TOOLGO = env GOWORK=off $(GO)

$(TOOLS)/ocb: internal/tools/collector/go.mod
	@$(SLOWLY) "compiling ocb" $(TOOLGO) build -C internal/tools/collector $(FLAGS) -o $(CURDIR)/$@ go.opentelemetry.io/collector/cmd/builder

$(TOOLS)/mdatagen: internal/tools/collector/go.mod
	@$(SLOWLY) "compiling mdatagen" $(TOOLGO) build -C internal/tools/collector $(FLAGS) -o $(CURDIR)/$@ go.opentelemetry.io/collector/cmd/mdatagen

$(TOOLS)/golangci-lint: internal/tools/lint/go.mod
	@$(SLOWLY) "compiling golangci-lint" $(TOOLGO) build -C internal/tools/lint $(FLAGS) -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(TOOLS)/govulncheck: internal/tools/vuln/go.mod
	@$(SLOWLY) "compiling govulncheck" $(TOOLGO) build -C internal/tools/vuln $(FLAGS) -o $(CURDIR)/$@ golang.org/x/vuln/cmd/govulncheck

$(TOOLS)/vale: internal/tools/vale/go.mod
	@$(SLOWLY) "compiling Vale" $(TOOLGO) build -C internal/tools/vale $(FLAGS) -o $(CURDIR)/$@ github.com/vale-cli/vale/v3/cmd/vale

$(TOOLS)/jaeger: internal/tools/jaeger/go.mod
	@$(SLOWLY) "compiling Jaeger (about three minutes, once)" $(TOOLGO) build -C internal/tools/jaeger $(FLAGS) -o $(CURDIR)/$@ github.com/jaegertracing/jaeger/cmd/jaeger

# Not built from source, because its web page requires another tool chain.
$(TOOLS)/prometheus:
	@scripts/prometheus $(TOOLS)

# The published jars, which require mvn and Java.
$(TOOLS)/kafka/kafka: scripts/kafka scripts/kafka.sha256
	@scripts/kafka $(TOOLS)

# ClickHouse's engine as a library, which requires Python.
$(TOOLS)/chdb/chdb: scripts/chdb scripts/chdb.txt
	@scripts/chdb $(TOOLS)

# Perfetto's protobuf classes, which require Python.
$(TOOLS)/perfetto/perfetto: scripts/perfetto scripts/perfetto.txt
	@scripts/perfetto $(TOOLS)

# FastAPI and OpenTelemetry, which require Python.
$(TOOLS)/python/python: scripts/python scripts/python.txt
	@scripts/python $(TOOLS)

# The same with ONNX Runtime.
$(TOOLS)/gpuxbench/python: scripts/python scripts/python.txt scripts/gpuxbench.txt
	@scripts/python $(TOOLS) scripts/gpuxbench.txt

$(TOOLS)/versitygw: internal/tools/versitygw/go.mod
	@$(SLOWLY) "compiling versitygw, an S3 server" $(TOOLGO) build -C internal/tools/versitygw $(FLAGS) -o $(CURDIR)/$@ github.com/versity/versitygw/cmd/versitygw
