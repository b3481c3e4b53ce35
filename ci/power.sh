#!/usr/bin/env bash
# The power of a machine is cut again and again (CUTS, 3 by default) while a program works on a pool in a file with durability
# `immediate`: everything that was answered or read is there when the machine is up again, and no change is there without those
# that its thread made before. The machine is a guest of QEMU with Debian's kernel and ext4 on a disk without a cache, and QEMU is
# killed: while the program works, and in every fourth cut earlier, when the pool is being recovered.
#
# The program is a test of `pando` (crates/pando/tests/killed/guest.rs). It writes each answer to a serial line, which leads out.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/guest/guests.sh

guest_packages e2fsprogs procps
cuts=${CUTS:-3}
work=$(realpath -m "${CARGO_TARGET_DIR:-target}/guest")
disk=$work/disk answers=$work/answers
# The program of `cargo test`.
program=$(cargo test --workspace --no-run --message-format=json | sed -n 's/.*"name":"killed".*"executable":"\([^"]*\)".*/\1/p')
begin_guest
cp "$program" "$work/killed"
add_to_guest bin "$work/killed"
end_guest ci/guest/power.sh virtio_pci virtio_blk ext4

rm -f "$disk"
truncate -s 512M "$disk"
mkfs.ext4 -q -F "$disk"
answered=0,0,0

# Starts the guest of a round; round 0 only checks what is there.
start() {
    : > "$answers"
    start_guest 200 "answered=$answered round=$1" -serial "file:$answers" -drive "file=$disk,format=raw,if=virtio,cache=none" ||
        fail "the guest does not come up"
}

fail() {
    guest_log
    cat "$work/qemu"
    echo "$1 (cut $cut, answered $answered)"
    exit 1
}

# The last change of each thread that was answered or read, now and before.
note_answers() {
    answered=$(tr -d '\r' < "$answers" | head -n -1 | awk -v before="$answered" '
        BEGIN { split(before, last, ",") }
        NF == 2 && $2 > last[$1 + 1] { last[$1 + 1] = $2 }
        END { printf "%d,%d,%d", last[1], last[2], last[3] }')
}

for cut in $(seq "$cuts"); do
    start "$cut"
    if [ $((cut % 4)) != 0 ]; then await_guest "guest: works" 100 || fail "the pool does not open"; fi
    sleep "$((RANDOM % 5)).$((RANDOM % 10))"
    kill -KILL "$(pgrep -P "$qemu")" || fail "the guest ended before its power was cut"
    wait "$qemu" 2>/dev/null || true
    note_answers
    guest_log | grep "guest: [0-9]" || true
done
cut=last
start 0
wait "$qemu" || true
guest_log | grep "guest: [0-9]"
[ "$(guest_status)" = 0 ] || fail "status $(guest_status)"
echo "$cuts cuts of power, answered $answered: nothing is lost"
