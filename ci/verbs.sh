#!/usr/bin/env bash
# The verbs fabric on a real RDMA stack: Debian's kernel with a software device (rdma_rxe), booted in QEMU (ci/guest). The program
# is the one of ci/features.sh; its defects are off.
#
# The conformance suite, memory servers that are stopped and killed, a verified benchmark between processes, and compute servers
# that are killed (KILLS in each of two plans, 3 by default). It takes some minutes, GUEST_SECONDS at most; what is measured there
# says nothing about speed. Keeps what it downloads in target/guest.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/optional.sh
source ci/guest/guests.sh

guest_packages iproute2 ibverbs-providers libibverbs1
work=$(realpath -m "${CARGO_TARGET_DIR:-target}/guest")
programs=$work/programs
mkdir -p "$programs"
# Builds the program too.
built=$(cargo test "${optional[@]}" --test it --test killed --no-run --message-format=json)
executable() { sed -n "/$1/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" <<<"$built"; }
cp "$(executable 'fabric-verbs.*"name":"it"')" "$programs/tests"
cp "$(executable '"name":"killed"')" "$programs/killed"
cp "${CARGO_TARGET_DIR:-target}/debug/pando" "$programs/"

begin_guest
add_to_guest bin "$(command -v rdma)" "$(command -v ip)" "$programs"/{tests,killed,pando}
add_to_guest etc/libibverbs.d /etc/libibverbs.d/rxe.driver
add_to_guest "$libraries/libibverbs" "/$libraries"/libibverbs/librxe*.so
# Loaded at run time, so no program names it.
add_to_guest "$libraries" "/$libraries/libibverbs.so.1"
# Without crc32_generic the device cannot be made.
end_guest ci/guest/verbs.sh crc32_generic dummy ib_uverbs rdma_rxe

run() {
    start_guest "${GUEST_SECONDS:-540}" "kills=${KILLS:-3}" || return 99
    wait "$qemu" || true
    guest_log
    return "$(guest_status)"
}
# A guest in which a memory server did not come up (97) has shown what its threads wait for, and runs once more. It has stalled in
# this way once, emulated. Any other failure is one.
run || { [ $? = 97 ] && echo "== once more" && run; }
