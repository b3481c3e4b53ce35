#!/usr/bin/env bash
# ci/lab.sh [DIR [EXPERIMENT...]]: runs experiments at the quick scale, all of them if none is named, and leaves their results
# (JSON), tables and plots (SVG) in DIR, docs/lab by default, and one table over all results there. PNG stay in target/lab.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${1:-docs/lab}
shift || true
results=target/lab
cargo build --release -q -p pando-cli
pando=${CARGO_TARGET_DIR:-target}/release/pando
[ $# -gt 0 ] || mapfile -t names < <("$pando" lab list | cut -d' ' -f1)
[ $# -eq 0 ] || names=("$@")
mkdir -p "$dir"
for name in "${names[@]}"; do
    "$pando" lab run "$name" --scale quick --out "$results"
    cp "$results/$name".{json,md,svg} "$dir/"
done
"$pando" lab summary "$dir" >"$dir/summary.md"
