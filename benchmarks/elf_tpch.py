"""Answers the conditions of elf_tpch.txt with DuckDB: for each, the number of rows and the sum of their numbers in the
file, and with `--times` the median time of finding the numbers, with one thread. Needs the package `duckdb`.
usage: elf_tpch.py LINEITEM.parquet CONDITIONS.txt [--times ROUNDS]"""

import statistics
import sys
import time

import duckdb

path, conditions = sys.argv[1:3]
rounds = int(sys.argv[4]) if sys.argv[3:4] == ["--times"] else 0
database = duckdb.connect()
database.execute("set threads = 1")
rows = f"read_parquet('{path}', file_row_number = true)"
database.execute(f"create table lineitem as select * from {rows}")
for line in open(conditions):
    name, condition = line.rstrip("\n").split(": ", 1)
    condition = " and ".join(f"({part})" for part in condition.split(" | "))
    count, numbers = database.execute(
        f"select count(*), coalesce(sum(file_row_number), 0) from lineitem where {condition}"
    ).fetchone()
    print(f"{name} {count} {numbers}")
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        database.execute(f"create or replace temp table found as select file_row_number from lineitem where {condition}")
        seconds.append(time.perf_counter() - start)
    if rounds:
        print(f"{name} duckdb_us {statistics.median(seconds) * 1e6:.0f}", file=sys.stderr)
