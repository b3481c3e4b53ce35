#!/usr/bin/env bash
# ci/fuzz.sh SECONDS: fuzzes each target of fuzz/ for so long, one on each core. Needs a nightly toolchain.
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
# What the fuzzer says of inputs that reach new code is of no use here.
run() {
    local log
    log=$(mktemp)
    trap 'rm "$log"' EXIT
    if cargo +nightly fuzz run "$1" -- -max_total_time="$2" -timeout=20 -rss_limit_mb=4096 >"$log" 2>&1; then
        echo "-- $1: $(grep '^Done' "$log")"
    else
        grep -v -E '^#[0-9]+|NEW_FUNC' "$log" | sed "s/^/$1: /"
        echo "-- $1: failed"
        return 1
    fi
}
export -f run
cargo +nightly fuzz build
# One on each core.
cargo +nightly fuzz list | xargs -P "$(nproc)" -I{} bash -o pipefail -c "run {} $seconds"
