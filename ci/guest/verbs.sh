#!/bin/sh
# What ci/verbs.sh runs in the guest; the status is 97 if a memory server does not come up. The device is software and may rest
# for longer than a NIC: where nobody is to be found dead, a packet is sent again after 0.3 s only (timeout=16).
set -eu

ulimit -l unlimited
ip link set lo up
[ -e /sys/class/net/dummy0 ] || ip link add dummy0 type dummy
ip link set dummy0 mtu 4200 up
ip addr add 10.9.9.1/24 dev dummy0
rdma link add rxe0 type rxe netdev dummy0

ports="7100 7101"
pool=verbs://127.0.0.1:7100,127.0.0.1:7101

fail() {
    echo "guest: $1"
    cat "$2"
    exit 1
}

serve() {
    servers=
    for port in $ports; do
        pando memory-server --fabric verbs --listen "127.0.0.1:$port" --size 128MiB > "/tmp/$port" 2>&1 &
        servers="$servers $!"
    done
    for port in $ports; do
        for _ in $(seq 200); do
            if grep -q "memory server:" "/tmp/$port"; then break; fi
            sleep 0.3
        done
        grep "memory server:" "/tmp/$port" && continue
        threads_of $servers
        echo "guest: the memory server of port $port did not come up"
        cat "/tmp/$port"
        exit 97
    done
}

# What the threads of processes wait for in the kernel.
threads_of() {
    for process in "$@"; do
        if [ ! -e "/proc/$process" ]; then echo "process $process has ended"; fi
        for thread in /proc/"$process"/task/*; do
            echo "thread $thread: $(cat "$thread/comm" "$thread/wchan" "$thread/syscall" 2>&1)"
            cat "$thread/stack" || true
        done
    done
    free
}

# What is left is written back, and then they end by themselves.
stop_serving() {
    kill $servers
    wait $servers
}

wait_for_index() {
    for _ in $(seq 300); do
        if pando status --pool "$pool" 2>&1 | grep -q "index $1"; then return; fi
        sleep 0.1
    done
    fail "there is no index $1" /tmp/bench
}

verified_bench() {
    timeout 120 pando bench --pool "$pool" --compute-servers 2 --cache 160KiB --slots 8 --verbs timeout=16 \
        --keys 20k --warmup 2k --ops 20k --verify --audit "$@" 2> /tmp/bench || fail "it failed" /tmp/bench
}

# A benchmark that goes on until something happens to it, and is under way.
endless() {
    pando bench --pool "$pool" --compute-servers 2 --cache 160KiB --verbs timeout=16 --keys 20k --warmup 1k --ops 1000m \
        --workload write-intensive > /tmp/bench 2>&1 &
    bench=$!
    wait_for_index bench
    sleep 2
    kill -0 "$bench" || fail "the benchmark ended by itself" /tmp/bench
}

# A client in the middle of its load gets signal $1 while another one loads rows; all of these are there in the end.
client_fails() {
    serve
    endless
    awk 'BEGIN { for (i = 0; i < 10000; i++) printf "key %06d\n", i }' > /tmp/rows
    rm -f /tmp/feed
    mkfifo /tmp/feed
    pando load /tmp/feed --format words --sort-memory 16KiB --pool "$pool" --verbs timeout=16 --index rows > /tmp/load 2>&1 &
    load=$!
    { head -n 2000 /tmp/rows; wait_for_index rows; kill "$1" "$bench"; tail -n +2001 /tmp/rows; } > /tmp/feed
    wait "$load" || fail "the other client failed too" /tmp/load
    pando scan --pool "$pool" --verbs timeout=16 --index rows --keys-only --unclean > /tmp/found
    cmp /tmp/rows /tmp/found || fail "rows are missing" /tmp/load
    kill -KILL "$bench" 2>/dev/null || true
    wait "$bench" 2>/dev/null || true
    stop_serving
    echo "signal $1 to a client: another one loaded and found 10,000 rows"
}

# A memory server is stopped for 5 s: verbs of a client go on. Then it is killed: an error, and no hang.
memory_server_fails() {
    serve
    endless
    first=${servers# }
    first=${first%% *}
    kill -STOP "$first"
    sleep 5
    kill -0 "$bench" || fail "a benchmark needed the process of a stopped memory server" /tmp/bench
    kill -CONT "$first"
    kill -KILL "$first"
    for _ in $(seq 600); do
        kill -0 "$bench" 2>/dev/null || break
        sleep 0.1
    done
    if wait "$bench"; then fail "it does not miss its memory server" /tmp/bench; fi
    grep "memory server 0" /tmp/bench || fail "it does not say what is wrong" /tmp/bench
    kill $servers 2>/dev/null || true
    wait
}

echo "== conformance"
timeout 200 tests conformance:: --ignored --test-threads 1
echo "== processes"
timeout 100 tests processes:: --ignored --test-threads 1 --nocapture

echo "== bench between processes"
serve
verified_bench --workload ycsb-a,insert-intensive
verified_bench --workload ycsb-a --offload always
stop_serving

echo "== processes that are killed or stopped in the middle of load"
client_fails -KILL
client_fails -STOP
memory_server_fails

echo "== compute servers that are killed again and again"
KILLED_FABRIC=verbs KILLED_PLAN=tcp KILLED_TIMES=$(sed -n 's/.*kills=\([0-9]*\).*/\1/p' /proc/cmdline) killed
