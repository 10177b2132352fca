# `make` alone lists the targets. Each installs what it needs, and prints that first; git, rustup and make must be
# present. With REQUEUE_SETUP=none, nothing is installed.
SHELL := bash

# A shell may not have rustup's directory in its PATH. `setup.sh` installs programs into the other one.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(shell scripts/setup.sh --path)

ifeq ($(CI),true)
# CI builds once, and does not debug.
export CARGO_PROFILE_DEV_DEBUG := 0
export CARGO_PROFILE_TEST_DEBUG := 0
export CARGO_INCREMENTAL := 0
endif

.PHONY: help run test check docs e2e e2e-full fidelity conformance loom sim soak chaos fuzz planted mutants instructions bench bench-store bench-kube package api platforms semver release dist footprint deny advisories

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' Makefile

run: ## Hash every file of this repository, one command per file; SERVE=1 keeps running and serves a dashboard
	@scripts/setup.sh
	@scripts/run.sh

test: ## Run every check: style, lints, docs, tests, examples, shell blocks, packages, dependencies
	@scripts/setup.sh
	@scripts/test.sh

check: ## Run the quick checks, between two edits
	@scripts/setup.sh
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace --lib --bins

docs: ## Serve the documentation at http://localhost:3000/ until Ctrl-C; PORT=n
	@scripts/setup.sh mdbook python3
	@scripts/docs.sh serve

e2e: ## Test against a Kubernetes API server, which Go builds in minutes the first time; TEST=name selects tests
	@scripts/setup.sh
	server=$$(scripts/kube-server.sh) && REQUEUE_KUBE_SERVER=$$server cargo test -p requeue-e2e $(TEST)

e2e-full: export REQUEUE_E2E := full
e2e-full: e2e ## Run the same tests at full length

fidelity: export REQUEUE_E2E := full
fidelity: ## Compare the API server in memory with a real one in 5,000 sequences of requests
	@scripts/setup.sh
	server=$$(scripts/kube-server.sh) && REQUEUE_KUBE_SERVER=$$server cargo test -p requeue-e2e --test fidelity -- --nocapture

package: ## Package the published crates, and test them from their packages alone
	@scripts/setup.sh
	scripts/package.sh
	scripts/newcomer.sh

api: ## Compare the public API of the libraries with docs/api; UPDATE=1 writes the listings
	@scripts/setup.sh oldest-rust
	@scripts/api.sh

platforms: ## Check the libraries for other platforms, with each feature alone, and with the lowest versions; ONLY=regex
	@scripts/setup.sh
	@scripts/platforms.sh

semver: ## Check the public API against the latest release, by the rules of semantic versioning
	@scripts/setup.sh
	@scripts/semver.sh

loom: ## Run every interleaving of the queue's threads with up to 5 preemptions; PREEMPTIONS=n
	@scripts/setup.sh
	scripts/loom.sh $(or $(PREEMPTIONS),5)

conformance: ## Record client-go again with Go, and compare; RECORD=1 keeps the recording
	@scripts/conformance.sh

sim: ## Run the queue with faulty workers, clocks and limiters for 10,000 seeds; SEEDS=n, FIRST=seed
	@scripts/setup.sh
	cargo run -p requeue-sim --bin sim -- $(or $(SEEDS),10000) $(or $(FIRST),0)

soak: ## Check for memory leaks: an hour on a fake clock, and 60 s of threads and tasks; SECONDS=n, FIRST=seed
	@scripts/setup.sh
	cargo run -p requeue-sim --bin soak -- $(or $(SECONDS),60) $(or $(FIRST),0)

chaos: ## Test each store for 120 s while processes, servers and connections fail; SECONDS=n, FIRST=seed
	@scripts/setup.sh postgresql pgbouncer redis faketime
	@scripts/chaos.sh $(or $(SECONDS),120) $(FIRST)

fuzz: ## Run each fuzz target under libFuzzer for 60 s; SECONDS=n; needs a nightly toolchain
	@scripts/setup.sh
	scripts/fuzz.sh $(or $(SECONDS),60)

planted: ## Plant bugs one at a time, and check that two layers of tests detect each; BUG=name, PART=1/6
	@scripts/setup.sh
	@PART=$(PART) scripts/planted.sh $(BUG)

mutants: ## Show the small changes of the core that no test detects; takes hours; FILE='queue limiter' selects files
	@scripts/setup.sh mutants
	@scripts/mutants.sh $(FILE)

instructions: ## Compare the instruction counts of the main paths with the baseline; UPDATE=1 writes the baseline
	@scripts/setup.sh valgrind
	@scripts/instructions.sh

bench: ## Compare requeue with client-go, kube-runtime and others; QUICK=1, ONLY=regex, ROUNDS=n, GROWTH=1; KEEP=1 writes to docs
	@scripts/setup.sh
	@scripts/bench.sh

bench-store: ## Compare stores with River, graphile-worker and BullMQ; QUICK=1, ONLY=regex, ROUNDS=n; FEW=1 compares few workers only; BLOAT=1 measures disk space instead; KEEP=1 writes to docs
	@scripts/setup.sh postgresql redis
	@scripts/bench-store.sh

bench-kube: ## Compare a controller with one of kube's, and measure shard groups, for an hour; ONLY=controllers or ONLY=shards, QUICK=1, ROUNDS=n; KEEP=1 writes to docs
	@scripts/setup.sh
	@scripts/bench-kube.sh

release: ## Build the program for distribution, without paths of this machine in it
	@scripts/setup.sh
	@scripts/release.sh

dist: ## Build and test the packages of each channel in target/dist; TARGET=triple
	@scripts/setup.sh
	@scripts/dist.sh

footprint: ## Measure the size of the program with each feature, and its start-up time; ONLY=sizes or ONLY=startup, ROUNDS=n
	@scripts/setup.sh musl
	@scripts/footprint.sh

deny: ## Check the licences, bans and sources of the dependencies
	@scripts/setup.sh deny
	cargo deny check bans licenses sources

advisories: ## Check the dependencies for known vulnerabilities; needs the network, for RustSec's database
	@scripts/setup.sh deny
	cargo deny check advisories
