#!/usr/bin/env bash
# Every file is as rustfmt leaves it.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
if [ -f fuzz/Cargo.toml ]; then
    cargo fmt --manifest-path fuzz/Cargo.toml --check
fi
