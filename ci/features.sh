#!/usr/bin/env bash
# What the default features leave out: the command line without Parquet, Elf's results with Arrow, and the proof that the
# tests of every crate find the defects that its feature `defects` puts in.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo clippy -p pando-cli --no-default-features --all-targets -- -D warnings

# One command for all of them, so that what the crates share is built once.
packages=(-p pando) features=pando/arrow
for crate in lab pool log elf elf-remote dex sherman smart; do
    packages+=(-p "pando-$crate")
    features+=,pando-$crate/defects
done
cargo clippy "${packages[@]}" -p pando-cli --features "$features,pando-cli/arrow" --all-targets -- -D warnings
cargo test "${packages[@]}" --features "$features" --test it -- \
    defects:: schedules:: left_locks:: killed:: record_batches
