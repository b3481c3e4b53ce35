#!/usr/bin/env bash
# ci/simulate.sh [A..B]: all systems on a simulated cluster, one random configuration for each seed from A to B - 1, every
# history checked, and fewer seeds with everything that can go wrong. What fails names its seed and the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-0..1200}
first=${seeds%..*}
count=$((${seeds#*..} - first))
# A share of the seeds, in percent.
run() {
    local share=$1
    shift
    cargo run --release -q -p pando-cli -- simulate --seeds "$first..$((first + count * share / 100))" "$@"
}
run 75 --faults none
run 75 --faults torn,spikes,slow
run 16 --faults all
run 16 --faults all,cut-off,preempt
run 75 --system pool --faults all
