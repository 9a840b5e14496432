# One command for each thing a person wants to do here. The scripts do the work and can be called alone.
.DEFAULT_GOAL := help
.PHONY: help demo kube test check fmt lint parity bench side-by-side start-side-by-side fuzz clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## the bookshop with real Envoys while the canary's weight changes (DEMO_SECONDS=n ends it)
	@scripts/prepare demo
	cargo build --release --package pilotfish --package pilotfish-e2e --bins
	@PILOTFISH=$${CARGO_TARGET_DIR:-target}/release/pilotfish $${CARGO_TARGET_DIR:-target}/release/pilotfish-demo

kube: ## a real API server on loopback to try things on, until Ctrl-C (KUBE_ARGS=--help)
	@scripts/fetch-kube
	cargo build --package pilotfish-e2e --bin pilotfish-kube
	@$${CARGO_TARGET_DIR:-target}/debug/pilotfish-kube $(KUBE_ARGS)

test: ## everything CI runs: format, lint, unit, property, end-to-end, fuzz, parity floors
	@scripts/test

check: ## does it compile, everywhere
	cargo check --workspace --all-targets

fmt: ## format the code
	cargo fmt --all

lint: ## clippy, warnings are errors
	cargo clippy --workspace --all-targets -- -D warnings

parity: ## compare with the recorded istiod, where ../shared is there
	@scripts/parity

bench: ## what the server costs, and how that grows (BENCH_ARGS="--growth", BENCH_ARGS=--help, BENCH_ARGS=micro)
	@scripts/bench $(BENCH_ARGS)

side-by-side: ## the same mesh against istiod and ours, where ../shared is there (BENCH_ARGS="--only ours")
	@scripts/side-by-side $(BENCH_ARGS)

start-side-by-side: ## start to ready and memory on a real API server, beside istiod where ../shared is there
	@scripts/start-side-by-side $(BENCH_ARGS)

fuzz: ## each fuzz target with libFuzzer for FUZZ_SECONDS (60)
	@scripts/fuzz $${FUZZ_SECONDS:-60}

clean: ## remove everything that was built or fetched
	cargo clean
	rm -rf fuzz/libfuzzer/target fuzz/libfuzzer/corpus fuzz/libfuzzer/artifacts
