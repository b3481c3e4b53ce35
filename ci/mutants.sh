#!/usr/bin/env bash
# ci/mutants.sh [N]: makes N random mistakes in the core crates (20 unless said otherwise), one at a time, in a copy, and runs the
# nearest tests on each. Says which no test noticed. By hand, not in CI: each takes a build and minutes of tests, and some change
# only speed. What is known of those is in docs/checking.md.
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-20}
if ! cargo mutants --version >/dev/null 2>&1; then
    cargo install cargo-mutants --locked
fi

# A mutant is not looked at in a debugger.
export CARGO_PROFILE_DEV_DEBUG=none CARGO_PROFILE_TEST_DEBUG=none
results=target/mutants
rm -rf "$results"
mkdir -p "$results"

# Of the lab, the checker alone; and nothing of tests.
cargo mutants --list -p pando-cache -p pando-dex -p pando-pool -p pando-rt -p pando-fabric -p pando-lab |
    grep -E '^crates/((cache|dex|pool|rt|fabric)/src/|lab/src/simulate/)' |
    grep -vE '^[^:]*/(tests|testing)(/|\.rs:)' >"$results/all.txt"
shuf -n "$count" "$results/all.txt" | sort >"$results/sample.txt"
echo "mutants: $(wc -l <"$results/sample.txt") of $(wc -l <"$results/all.txt")"

for crate in cache dex pool rt fabric lab; do
    # By file too: mutants that leave out a field are made whatever --re says (seen with cargo-mutants 27.1). Those of the
    # same files are run besides.
    named=()
    while IFS= read -r name; do
        named+=(--file "${name%%:*}" --re "^$(sed 's/[][\.*^$()+?{}|\\]/\\&/g' <<<"$name")\$")
    done < <(grep "^crates/$crate/" "$results/sample.txt" || true)
    if [ ${#named[@]} -eq 0 ]; then continue; fi
    tested=(--test-package "pando-$crate" --cargo-arg=--lib --cargo-arg=--test=it)
    # The conformance suite of all fabrics is in these.
    if [ "$crate" = fabric ]; then tested+=(--test-package pando-fabric-local --test-package pando-rt); fi
    filter=()
    if [ "$crate" = lab ]; then filter=(-- -- simulate); fi
    status=0
    cargo mutants -p "pando-$crate" "${tested[@]}" "${named[@]}" --output "$results/$crate" \
        --baseline skip --timeout 600 --build-timeout 1800 --no-shuffle "${filter[@]}" || status=$?
    # 2 says that some were missed, 3 that some ended by the timeout.
    if [ "$status" -ne 0 ] && [ "$status" -ne 2 ] && [ "$status" -ne 3 ]; then exit "$status"; fi
done

missed=$(cat "$results"/*/mutants.out/missed.txt 2>/dev/null || true)
if [ -n "$missed" ]; then
    echo "mutants: no test noticed"
    echo "$missed"
    exit 1
fi
echo "mutants: all were noticed"
