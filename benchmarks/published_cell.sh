#!/usr/bin/env bash
# The published cell of DEX, scaled (docs/performance.md): every workload, leaf admissions and ablations, as a
# Markdown table. Counts of verbs and bytes do not depend on the machine's speed. About a minute per row on 2 cores.
#   benchmarks/published_cell.sh [workloads|admission|ablations|all]
#   KEYS=200m CACHE=256MiB benchmarks/published_cell.sh workloads     # the paper's size
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet
pando=${CARGO_TARGET_DIR:-target}/release/pando
cell=(--keys "${KEYS:-20m}" --fill 0.5 --node-size 1KiB --memory-servers 4 --compute-servers 4 --threads 1
  --cache "${CACHE:-26MiB}" --warmup "${WARMUP:-8m}" --ops "${OPS:-8m}" --verify --audit --json -)

# The first value of a field in a text.
field() { grep -o "\"$1\":[^,}]*" <<<"$2" | head -n 1 | cut -d: -f2; }

row() { # name, options...
  local name=$1 json
  shift
  json=$("$pando" bench "${cell[@]}" "$@")
  printf '| %s | %.3f | %.3f | %.4f | %.0f | %.3f | %s | %s | %.1f | %.2f |\n' "$name" \
    "$(field reads "${json#*per_op}")" "$(field writes "${json#*per_op}")" "$(field atomics "$json")" \
    "$(field bytes_total "$json")" "$(field hit_ratio_leaf "$json")" "$(field verify_errors "$json")" \
    "$(field audit_violations "$json")" "$(field load_seconds "$json")" "$(field peak_rss_bytes "$json")e-9"
}

echo '| run | READs/op | WRITEs/op | atomics/op | bytes/op | leaf hit ratio | verify errors | audit violations |' \
  'load, s | peak RSS, GB |'
echo '|---|---|---|---|---|---|---|---|---|---|'
part=${1:-all}
if [[ $part == workloads || $part == all ]]; then
  for workload in read-only read-intensive write-intensive insert-intensive insert-only scan-intensive; do
    row "$workload" --workload $workload --dist zipf:0.99
  done
  row 'read-only, uniform keys' --workload read-only --dist uniform
  row 'write-intensive, uniform keys' --workload write-intensive --dist uniform
fi
if [[ $part == admission || $part == all ]]; then
  for p in 0.01 0.1 0.5 1; do
    row "read-only, leaf admission $p" --workload read-only --leaf-admission $p
  done
fi
if [[ $part == ablations || $part == all ]]; then
  for switch in '--cooling fifo' '--leaf-admission 1' '--eviction random' '--no-swizzle' '--inner-fill 0.5' \
    '--leaf-writes changed'; do
    # shellcheck disable=SC2086
    row "read-only, $switch" --workload read-only $switch
    # shellcheck disable=SC2086
    row "write-intensive, $switch" --workload write-intensive $switch
  done
fi
