#!/usr/bin/env bash
# ci/simulate.sh [A..B]: all systems on a simulated cluster, one random configuration for each seed from A to B - 1, every
# history checked, and fewer seeds with everything that can go wrong. Then DEX alone, with boundaries that stay; those that move
# have their seeds in `cargo test`. What fails names its seed and the command that repeats it.
#
# The programs are those of `cargo test`: with optimisation for speed it takes as long.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-0..1200}
first=${seeds%..*}
count=$((${seeds#*..} - first))
programs=$(cargo test --workspace --no-run --message-format=json)
dex=$(sed -n '/crates\/dex#/s/.*"name":"it".*"executable":"\([^"]*\)".*/\1/p' <<<"$programs")
# A share of the seeds, in percent.
run() {
    local share=$1
    shift
    "${CARGO_TARGET_DIR:-target}/debug/pando" simulate --seeds "$first..$((first + count * share / 100))" "$@"
}
run 75 --faults none
run 75 --faults torn,spikes,slow
run 16 --faults all
run 16 --faults all,cut-off,preempt
run 40 --system dex --faults stop,lost-answers,kill-compute
run 20 --system all --faults kill-memory,torn,spikes
run 20 --system dex --faults kill-memory,kill-compute,lost-answers
run 75 --system pool --faults all
PANDO_SIM_SEEDS=$seeds "$dex" simulated::
