#!/usr/bin/env bash
# ci/simulate.sh [A..B]: all systems on a simulated cluster, one random configuration for each seed from A to B - 1, every
# history checked; then the proof that defects would be found. What fails names its seed and the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-0..1200}
run() { cargo run --release -q -p pando-cli -- simulate --seeds "$seeds" "$@"; }
run --faults none
run --faults torn,spikes,slow
cargo clippy -p pando-lab --features defects --all-targets -- -D warnings
cargo test -p pando-lab --features defects --test defects
