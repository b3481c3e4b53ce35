#!/usr/bin/env bash
# The conditions on lineitem of TPC-H's Q1, Q6, Q10, Q12, Q14 and Q19, from Parquet, answered by Elf and by DuckDB: the
# numbers of rows and the sums of their row numbers must be equal. Then the times of Q6's condition, on one core. Needs
# Python's package `duckdb` (`pip install duckdb`). About two minutes at scale factor 1, and 2.5 GB of memory.
#   benchmarks/elf_tpch.sh [SCALE [ROUNDS]]
set -euo pipefail
cd "$(dirname "$0")/.."
scale=${1:-1}
rounds=${2:-21}
cargo build --release --quiet -p pando-workload --example tpch_lineitem
cargo build --release --quiet -p pando-elf --example elf_tpch
examples=${CARGO_TARGET_DIR:-target}/release/examples
place=$(mktemp -d "${TMPDIR:-/tmp}/elf_tpch.XXXXXX")
trap 'rm -rf "$place"' EXIT

"$examples/tpch_lineitem" --scale "$scale" "$place/lineitem.parquet"
"$examples/elf_tpch" "$place/lineitem.parquet" benchmarks/elf_tpch.txt "$rounds" >"$place/elf"
python3 benchmarks/elf_tpch.py "$place/lineitem.parquet" benchmarks/elf_tpch.txt --times "$rounds" >"$place/duckdb"
if ! diff "$place/elf" "$place/duckdb"; then
  echo 'FAILED: Elf and DuckDB differ (lines of Elf begin with <: name, rows, sum of row numbers)' >&2
  exit 1
fi
cat "$place/elf"
echo 'Elf and DuckDB agree'
