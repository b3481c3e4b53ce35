#!/usr/bin/env bash
# ci/simulated.sh A..B: DEX on a simulated cluster, one random configuration and history for each seed from A to B - 1, with
# boundaries that stay; those that move have their seeds in `cargo test`.
# A failure says the seed; the same command with that one seed repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."

PANDO_SIM_SEEDS=${1:?"usage: ci/simulated.sh A..B"} cargo test --release -p pando-dex --test it simulated::
