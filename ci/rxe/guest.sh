#!/bin/sh
# What ci/verbs.sh runs in the guest. The device is software and may rest for longer than a NIC: where nobody is to be found dead,
# a packet is sent again after 0.3 s only (timeout=16).
set -eu

echo "== conformance"
timeout 200 conformance --ignored --test-threads 1
echo "== processes"
timeout 100 processes --ignored --test-threads 1 --nocapture

echo "== bench between processes"
for port in 7100 7101; do
    pando memory-server --fabric verbs --listen "127.0.0.1:$port" --size 128MiB > "/tmp/$port" 2>&1 &
    servers="${servers:-} $!"
done
for port in 7100 7101; do
    for _ in $(seq 200); do
        if grep -q "memory server:" "/tmp/$port"; then break; fi
        sleep 0.1
    done
    cat "/tmp/$port"
done
timeout 120 pando bench --pool verbs://127.0.0.1:7100,127.0.0.1:7101 --compute-servers 2 --cache 160KiB --slots 8 \
    --verbs timeout=16 --keys 20k --warmup 2k --ops 20k --workload ycsb-a,insert-intensive --verify --audit 2> /tmp/bench || { cat /tmp/bench; exit 1; }
# What is left is written back, and then they end by themselves.
kill $servers
wait $servers
