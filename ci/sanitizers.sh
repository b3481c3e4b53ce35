#!/usr/bin/env bash
# Stress tests over real threads under ThreadSanitizer and AddressSanitizer. Needs a nightly toolchain.
#
# The standard library is the one that rustup installed, not an instrumented one: ThreadSanitizer does not see how
# its locks order accesses and reports what they protect as races. That is safe code, which the compiler has checked.
# So a report counts only if a file with unsafe code has part in it; the others are counted and kept.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "sanitizers: there is no nightly toolchain"
    if [ "${CI:-}" = true ]; then exit 1; fi
    exit 0
fi

host=$(rustc +nightly -vV | sed -n 's/^host: //p')
unsafe_files=$(grep -rlE '\bunsafe (\{|impl|fn)' --include='*.rs' crates/*/src | paste -sd'|')

# Sanitizer, package, module of its tests.
run() {
    echo "-- $1: $2, $3"
    CARGO_PROFILE_RELEASE_DEBUG=line-tables-only RUSTFLAGS="-Zsanitizer=$1 -Cunsafe-allow-abi-mismatch=sanitizer" \
        CARGO_TARGET_DIR="target-$1" \
        TSAN_OPTIONS="exitcode=0 suppressions=$PWD/ci/tsan.supp log_path=$PWD/target-$1/reports/$2" \
        cargo +nightly test --release --target "$host" -p "$2" --test it "$3::"
}

# Fails if a report of ThreadSanitizer names one of the files with unsafe code.
judge() {
    cat target-thread/reports/* 2>/dev/null |
        awk -v files="$unsafe_files" '
            /^WARNING: ThreadSanitizer/ { reports++; report = ""; counts = 0 }
            { report = report $0 "\n"; if ($0 ~ files) counts = 1 }
            /^SUMMARY: ThreadSanitizer/ { if (counts) { bad++; printf "%s", report } }
            END {
                printf "-- thread: %d reports, %d of them in files with unsafe code\n", reports, bad
                exit bad > 0
            }'
}

rm -rf target-thread/reports
mkdir -p target-thread/reports
for sanitizer in thread address; do
    run $sanitizer pando-cache stress
    run $sanitizer pando-fabric-local conformance
    run $sanitizer pando-dex stress
    if [ $sanitizer = thread ]; then judge; fi
done
