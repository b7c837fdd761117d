# What people do here, by name. Works with GNU make 3.81 and a POSIX shell; every target sets up what it needs.

CARGO   ?= cargo
CONFIG  ?= instance.yaml
NEXTEST_VERSION = 0.9.143
DENY_VERSION    = 0.20.2

.PHONY: help setup mlx release serve test soak bench bench-router lint clean

help:
	@echo "make serve          set up, build and serve $(CONFIG) in the foreground"
	@echo "make test           set up and run all tests"
	@echo "make setup          only set up: MLX, the release build, the default model"
	@echo "make soak           load a fleet for SANCTUM_SOAK_SECONDS (300) while workers are killed"
	@echo "make bench          the worker beside llama.cpp and mlx-lm on the same weights"
	@echo "make bench-router   the router beside haproxy"
	@echo "make lint           formatting, clippy, licences and sources of dependencies"
	@echo "make clean          remove what was built (not the model, not the caches)"

mlx:
	@kernels/mlx/setup.sh

release: mlx
	@$(CARGO) build --release --locked -p sanctum-mlx -p sanctum-router

setup: release
	@deploy/fetch-default-model.sh target/release/sanctum-mlx

# The router takes its workers along when it ends, so an interrupt leaves nothing running.
serve: setup
	@echo
	@echo "Serving $(CONFIG). When the workers are ready (a second or two), from another terminal:"
	@echo "  target/release/sanctum chat council-secure 'What is 2+2?'"
	@echo "  curl -s http://127.0.0.1:8900/v1/chat/completions -H 'content-type: application/json' \\"
	@echo "    -d '{\"model\":\"council-secure\",\"messages\":[{\"role\":\"user\",\"content\":\"What is 2+2?\"}]}'"
	@echo "Ctrl-C stops the router and its workers."
	@echo
	@exec target/release/sanctum-router --instance $(CONFIG)

# Tests start the binaries that lie beside them, which cargo does not build by itself.
test: mlx
	@$(CARGO) nextest --version >/dev/null 2>&1 || \
	  $(CARGO) install --locked --version $(NEXTEST_VERSION) cargo-nextest
	@$(CARGO) build --workspace --bins --locked
	@deploy/fetch-default-model.sh target/debug/sanctum-mlx
	@$(CARGO) test --workspace --doc --locked --quiet
	@$(CARGO) nextest run --workspace --locked

soak: mlx
	@$(CARGO) build --workspace --bins --locked
	@deploy/fetch-default-model.sh target/debug/sanctum-mlx
	@$(CARGO) nextest run --locked -p sanctum-tests --run-ignored only --no-capture -E 'binary(soak)'

bench: setup
	@tests/bench/run worker

bench-router: setup
	@tests/bench/run router

lint: mlx
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy
	@$(CARGO) deny --version >/dev/null 2>&1 || \
	  $(CARGO) install --locked --version $(DENY_VERSION) cargo-deny
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) deny --locked check bans licenses sources

clean:
	@$(CARGO) clean
