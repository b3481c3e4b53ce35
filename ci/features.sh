#!/usr/bin/env bash
# What the default features leave out: RDMA, Elf's results with Arrow, backups in object stores, the command line without
# Parquet, processes that are killed when power is lost, and the proof that the tests of every crate find the defects that its feature `defects` puts in.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/optional.sh

cargo clippy "${optional[@]}" --all-targets -- -D warnings
cargo test "${optional[@]}" --test it -- \
    defects:: schedules:: left_locks:: killed:: reclaim:: record_batches object bad_input
KILLED_TIMES=15 cargo test "${optional[@]}" --test killed
