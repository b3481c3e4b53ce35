#!/usr/bin/env bash
# ci/fuzz.sh SECONDS: fuzzes each target of fuzz/ for so long. Needs a nightly toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?"usage: ci/fuzz.sh SECONDS"}
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "fuzz: there is no nightly toolchain"
    if [ "${CI:-}" = true ]; then exit 1; fi
    exit 0
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install cargo-fuzz --locked
fi

# The standard library is not instrumented.
export RUSTFLAGS="${RUSTFLAGS:-} -Cunsafe-allow-abi-mismatch=sanitizer"
for target in $(cargo +nightly fuzz list); do
    echo "-- $target"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096
done
