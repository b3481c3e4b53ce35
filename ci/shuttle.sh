#!/usr/bin/env bash
# The whole cache, the threads of memory servers, the log's group commit, and Elfs that change, under random schedules.
# SHUTTLE_ITERATIONS says how many each test tries (default 4000); a failing schedule is printed with what replays it. Further
# arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR=target-shuttle RUSTFLAGS="--cfg shuttle"
export SHUTTLE_ITERATIONS="${SHUTTLE_ITERATIONS:-4000}"
cargo test --release -p pando-cache --test it shuttle_ "$@"
cargo test --release -p pando-fabric-local --features defects --lib schedules "$@"
cargo test --release -p pando-log --lib shuttle_ "$@"
cargo test --release -p pando-elf --test it shuttle_ "$@"
