# `make` alone lists the targets. Each does its own set-up; what it needs first is git, rustup and make.
SHELL := bash

# A fresh shell may not have rustup's directory in its PATH yet.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

ifeq ($(CI),true)
# A build that nobody will debug, and that happens once.
export CARGO_PROFILE_DEV_DEBUG := 0
export CARGO_PROFILE_TEST_DEBUG := 0
export CARGO_INCREMENTAL := 0
endif

.PHONY: help run test check docs e2e e2e-full conformance loom sim soak chaos fuzz planted mutants instructions bench bench-store bench-kube package release deny advisories

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' Makefile

run: ## Hash every file of this repository with the program, some of them several times; SERVE=1: and a page of it, until Ctrl-C
	@scripts/setup.sh
	@scripts/run.sh

test: ## Everything that can be checked: style, lints, docs, tests, examples, the README, the dependencies
	@scripts/setup.sh
	@scripts/test.sh

check: ## The quick part of it, for between two edits
	@scripts/setup.sh
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace --lib --bins

docs: ## The documentation site, at http://localhost:3000/ until Ctrl-C, or PORT=n
	@scripts/setup.sh mdbook
	@scripts/docs.sh serve

e2e: ## Against a Kubernetes API server, which Go builds in minutes the first time; TEST=name: one test
	@scripts/setup.sh
	server=$$(scripts/kube-server.sh) && REQUEUE_KUBE_SERVER=$$server cargo test -p requeue-e2e $(TEST)

e2e-full: export REQUEUE_E2E := full
e2e-full: e2e ## The same at full length

package: ## Package the crates that are published, and test them from their packages alone
	@scripts/setup.sh
	scripts/package.sh

loom: ## Every interleaving of the queue's threads with up to five preemptions, or PREEMPTIONS=n
	@scripts/setup.sh
	scripts/loom.sh $(or $(PREEMPTIONS),5)

conformance: ## Record anew what client-go does, with Go, and compare; RECORD=1: and keep it
	@scripts/conformance.sh

sim: ## The queue with workers, clocks and limiters that fail, SEEDS=n times
	@scripts/setup.sh
	cargo run -p requeue-sim --bin sim -- $(or $(SEEDS),10000) $(or $(FIRST),0)

soak: ## Memory comes back: an hour by a clock that is moved, SECONDS=n of threads and tasks, from the seed FIRST
	@scripts/setup.sh
	cargo run -p requeue-sim --bin soak -- $(or $(SECONDS),60) $(or $(FIRST),0)

chaos: ## Stores under processes and servers that are killed, cut off and held up, for SECONDS=n each, from the seed FIRST
	@for what in postgresql pgbouncer redis faketime; do scripts/setup.sh $$what || exit; done
	@scripts/chaos.sh $(or $(SECONDS),120) $(FIRST)

fuzz: ## Each fuzz target under libFuzzer for a minute, or SECONDS=n; needs a nightly toolchain
	@scripts/setup.sh
	scripts/fuzz.sh $(or $(SECONDS),60)

planted: ## Bugs planted one at a time, and which of the tests see each
	@scripts/setup.sh
	@scripts/planted.sh

mutants: ## Whether some test sees every small change of the core's code, for hours; FILE='queue limiter': of these alone
	@scripts/setup.sh mutants
	@scripts/mutants.sh $(FILE)

instructions: ## What the main paths take in instructions, against what is committed; UPDATE=1: and commit to it
	@scripts/setup.sh valgrind
	@scripts/instructions.sh

bench: ## Ours beside client-go, kube-runtime and others, in one run; QUICK=1, ONLY=regex, ROUNDS=n, GROWTH=1; KEEP=1: into docs
	@scripts/setup.sh
	@scripts/bench.sh

bench-store: ## Stores beside River, graphile-worker and BullMQ on the same servers; QUICK=1, ONLY=regex, ROUNDS=n; FEW=1: few workers alone; BLOAT=1: room that ten million keys take instead; KEEP=1: into docs
	@scripts/setup.sh postgresql
	@scripts/setup.sh redis
	@scripts/bench-store.sh

bench-kube: export KEPT := $(if $(KEEP),docs/bench-kube.txt,/dev/null)
bench-kube: ## A controller of ours beside one of kube's on the same API server, for half an hour; QUICK=1, ROUNDS=n; KEEP=1: into docs
	@scripts/setup.sh
	set -o pipefail; server=$$(scripts/kube-server.sh) && REQUEUE_KUBE_SERVER=$$server cargo bench -p requeue-e2e --bench controllers | tee "$$KEPT"

release: ## The program to be given to others: without paths of this machine in it
	@scripts/setup.sh
	@scripts/release.sh

deny: ## Licences, bans and sources of the dependencies
	@scripts/setup.sh deny
	cargo deny check bans licenses sources

advisories: ## Known holes in the dependencies; needs the network, for RustSec's database on GitHub
	@scripts/setup.sh deny
	cargo deny check advisories
