#!/usr/bin/env bash
# Latches, tickets and pins under every interleaving and reordering that loom knows.
# LOOM_MAX_PREEMPTIONS=3 makes it quicker and weaker. Further arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=target-loom RUSTFLAGS="--cfg loom"
cargo test --release -p pando-cache --test it loom_ "$@"
