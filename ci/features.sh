#!/usr/bin/env bash
# The command line without Parquet, the one feature that can be left out, and Elf's results with Arrow.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo clippy -p pando-cli --no-default-features --all-targets -- -D warnings
cargo test -p pando-cli --no-default-features --test it bad_input
cargo clippy -p pando -p pando-cli --features pando/arrow,pando-cli/arrow --all-targets -- -D warnings
cargo test -p pando --features arrow --test it elf
