#!/usr/bin/env bash
# Real input, end to end, each step an invocation of its own on a pool in shared memory: the word list of the system
# and TPC-H lineitem keyed by (l_orderkey, l_linenumber). What `scan` prints is compared with what `sort` gives, then half
# of the rows is deleted and loaded again, which must leave the pool as large as it was. About three minutes at scale 1.
#   benchmarks/real_input.sh [SCALE]        # SCALE is the scale factor of lineitem, 1 by default
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
scale=${1:-1}
words=${WORDS:-/usr/share/dict/words}
cargo build --release --quiet
cargo build --release --quiet -p pando-workload --example tpch_lineitem
target=$(cd "${CARGO_TARGET_DIR:-target}/release" && pwd)
pando=$target/pando
place=$(mktemp -d "${TMPDIR:-/dev/shm}/real_input.XXXXXX")
trap 'rm -rf "$place"' EXIT
cd "$place"

failed() { echo "FAILED: $*" >&2 && exit 1; }
on() { echo "--pool $1.pando --index $1"; }
# Two texts are the same.
same() { if cmp -s "$2" "$3"; then echo "  $1: the same, $(wc -l <"$2") lines"; else failed "$1"; fi; }
# Bytes of allocated blocks, of chunks and of the file.
sizes() {
  local stats
  stats=$("$pando" stats --pool "$1.pando" --json -)
  for field in bytes_allocated bytes_in_chunks; do
    grep -o "\"$field\":[0-9]*" <<<"$stats" | awk -F: '{ sum += $2 } END { printf "%d\n", sum }'
  done
  du -B1 "$1.pando" | cut -f1
}

# Ranges, prefixes and descending order, against the same lines cut out of all of them.
ranges() { # index, file of all sorted keys, prefix as scan takes it, as grep takes it
  local index=$1 all=$2 count low high
  count=$(wc -l <"$all")
  low=$(sed -n "$((count / 3))p" "$all")
  high=$(sed -n "$((count * 2 / 3))p" "$all")
  # shellcheck disable=SC2046
  "$pando" scan $(on "$index") --keys-only --from "$low" --to "$high" >found
  sed -n "$((count / 3)),$((count * 2 / 3 - 1))p" "$all" >expected
  same 'scan of a range' found expected
  # shellcheck disable=SC2046
  "$pando" scan $(on "$index") --keys-only --prefix "$3" >found
  grep "$4" "$all" >expected
  same "scan of the prefix $3" found expected
  # shellcheck disable=SC2046
  "$pando" scan $(on "$index") --keys-only --reverse >found
  tac "$all" >expected
  same 'scan in descending order' found expected
}

# Deletes the keys that a command prints and loads the file again, twice. `before` has the sizes after the first load.
halve() { # index, file of all sorted keys, how to load, what goes, command
  local index=$1 all=$2 load=$3 what=$4 cycle after
  for cycle in 1 2; do
    # shellcheck disable=SC2046
    "$5" "$all" | "$pando" del $(on "$index") --stdin 2>/dev/null
    "$pando" check --pool "$index.pando" >/dev/null
    # shellcheck disable=SC2086
    "$pando" load $load >/dev/null
    "$pando" check --pool "$index.pando" >/dev/null
    # shellcheck disable=SC2046
    "$pando" scan $(on "$index") --keys-only >found
    cmp -s found "$all" || failed "keys after $what went and came back"
    mapfile -t after < <(sizes "$index")
    echo "  $what deleted and loaded again, time $cycle: allocated ${before[0]} -> ${after[0]} bytes," \
      "chunks ${before[1]} -> ${after[1]}, file ${before[2]} -> ${after[2]}"
    [[ ${after[1]} -le ${before[1]} && ${after[2]} -le ${before[2]} ]] || failed 'the pool has grown'
  done
}
lower_half() { head -n "$(($(wc -l <"$1") / 2))" "$1"; }
every_second() { awk 'NR % 2' "$1"; }

echo "words: $words"
cp "$words" words.txt
load="words.txt --format words $(on words)"
# shellcheck disable=SC2086
"$pando" load $load | sed 's/^/  /'
sort -u words.txt >words.sorted
# shellcheck disable=SC2046
"$pando" scan $(on words) --keys-only --output raw >found
same 'scan of everything' found words.sorted
ranges words words.sorted pre '^pre'
mapfile -t before < <(sizes words)
halve words words.sorted "$load" 'the lower half' lower_half
halve words words.sorted "$load" 'every second row' every_second

echo "lineitem, scale factor $scale"
"$target/examples/tpch_lineitem" --scale "$scale" lineitem.csv >/dev/null
load="lineitem.csv $(on items) --key l_orderkey:int,l_linenumber:int"
# shellcheck disable=SC2086
"$pando" load $load | sed 's/^/  /'
# The key, and the other columns as the value. Only comments, the last column, have commas or quotes.
tail -n +2 lineitem.csv | awk -F, -v OFS='\t' '{
  comment = $16
  for (i = 17; i <= NF; i++) comment = comment "," $i
  gsub(/"/, "", comment)
  print $1 "," $4, $2, $3, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, comment
}' | sort -t, -k1,1n -k2,2n >items.sorted
# shellcheck disable=SC2046
"$pando" scan $(on items) | sed 's/\\x09/\t/g' >found
same 'scan of everything' found items.sorted
cut -f1 items.sorted >items.keys
rm items.sorted found
ranges items items.keys 7 '^7,'
mapfile -t before < <(sizes items)
halve items items.keys "$load" 'the lower half' lower_half
halve items items.keys "$load" 'every second row' every_second
echo 'all as it should be'
