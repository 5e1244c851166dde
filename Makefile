# Thin: each target is one readable line. `make help` lists them.
CARGO ?= cargo
export TOKENGAUGE ?= $(CURDIR)/target/release/tokengauge
export TOKENGAUGE_CACHE ?= $(CURDIR)/target/real

.PHONY: help setup build dist demo test test-real test-join test-stack dashboards sdks image test-image test-k8s test-bad test-tls test-slo test-jsonl test-outage test-live bench fuzz ebpf lint ci

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## installs what building and testing need, by package name
	@tests/setup.sh

build: setup ## the release binary
	$(CARGO) build --release --locked -p tokengauge

dist: build ## the release archive in target/dist: binary, manual pages, completions, schemas
	agent/dist.sh

demo: build ## the main job on real traffic; ONCE=1 ends by itself
	$(TOKENGAUGE) demo $(if $(ONCE),--once)

test: setup ## every test that needs no other program running
	$(CARGO) test --workspace --locked --no-fail-fast

test-real: build ## real model server, nginx, SDK clients, a real Collector
	tests/real/setup.sh && python3 tests/real/run.py && python3 tests/real/run_sdks.py && python3 tests/real/grpc_calls.py && python3 tests/real/engine.py
	tests/real/setup-go.sh && python3 tests/real/collector.py && python3 tests/real/collector_configs.py && python3 tests/real/helm.py

test-join: build ## where the time to first token goes: real LiteLLM before real llama.cpp, both ends tapped
	tests/real/setup.sh && python3 tests/real/join.py

test-stack: build ## wire → agent → Collectors → Prometheus and Jaeger, compared with the JSON lines; dashboards, alerts
	tests/real/setup.sh && tests/real/setup-go.sh collector prometheus jaeger
	python3 tests/stack/alerts.py && tests/stack/types.sh && python3 tests/stack/run.py

dashboards: ## writes the dashboards' JSON anew from helm/dashboards
	python3 helm/dashboards/make.py

sdks: build ## every SDK against a local provider; writes the table tests/real/SDKS.md
	tests/real/setup.sh && python3 tests/real/run_sdks.py --doc tests/real/SDKS.md

image: build ## the container image, target/image/*.tar; ARCH="amd64 arm64" for both
	helm/image/build.sh $(ARCH)

test-image: build ## the image for both architectures: contents, bill of materials, arm64 in an emulator
	tests/real/image.py

test-k8s: build ## the chart on a real Kubernetes node
	tests/real/setup-go.sh helm collector prometheus alertmanager && tests/k8s/setup.sh && python3 tests/k8s/run.py && python3 tests/k8s/enrich.py && python3 tests/k8s/collector.py && python3 tests/k8s/stranger.py

test-bad: build ## hostile captures: clear errors, bounded memory, no panic
	python3 tests/bad/run.py

test-tls: build ## decrypted captures against the clear and against tshark, with a real OpenSSL
	tests/tls/setup.sh && $(CARGO) build --locked --workspace --example decrypted
	python3 tests/tls/run.py

test-slo: build ## objectives against the tools of Go, promtool, and a real Prometheus and Alertmanager
	tests/slo/setup.sh && python3 tests/slo/compare.py $(if $(wildcard ../shared/fixtures/slo/index.json),--index ../shared/fixtures/slo)
	tests/slo/backtest.py && tests/slo/kill.sh
	tests/real/setup-go.sh prometheus alertmanager && python3 tests/slo/promtool.py && python3 tests/slo/alerts.py

test-outage: setup ## an hour without a receiver (compressed), kill -9, a full disk, slow and wrong answers, a real Collector
	tests/real/setup-go.sh collector && $(CARGO) build --release --locked -p tokengauge --example outage_load && python3 tests/outage/run.py

test-hook: build ## servers that tell of their requests: every event accounted for, what a call costs, hostile and dying ones
	python3 tests/hook/run.py

test-jsonl: setup ## the file of records under kill -9 and on a full disk
	tests/jsonl/kill.sh

test-live: build ## live eBPF against a schedule, and 10,000 chunks/s accounted for
	python3 tests/live/schedule.py && python3 tests/live/load.py && python3 tests/live/health.py && python3 tests/live/series.py

bench: build ## ratios against floors measured in the same run
	tests/bench/run.sh

fuzz: setup ## every parser for SECONDS (60) each
	tests/fuzz/run.sh $(or $(SECONDS),60)

ebpf: ## rebuilds the kernel programs and their hash
	ebpf/build.sh

lint: setup ## formatting and clippy, as CI does
	$(CARGO) fmt --all --check && $(CARGO) clippy --workspace --all-targets --locked -- -D warnings

ci: ## everything that decides
	.ci/run
