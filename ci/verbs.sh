#!/usr/bin/env bash
# The verbs fabric on a real RDMA stack: Debian's kernel with a software device (rdma_rxe), booted in QEMU (ci/rxe). The program
# is the one of ci/features.sh; its defects are off.
#
# The conformance suite, memory servers that are stopped and killed, and a verified benchmark between processes. It takes some
# minutes; what is measured there says nothing about speed. Keeps what it downloads in target/rxe.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/optional.sh

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        qemu-system-x86 busybox-static cpio kmod iproute2 ibverbs-providers libibverbs1 >/dev/null
fi

work=$(realpath -m "${CARGO_TARGET_DIR:-target}/rxe")
programs=$work/programs
mkdir -p "$programs"
# Builds the program too.
cargo test "${optional[@]}" --test it --no-run --message-format=json |
    sed -n '/fabric-verbs/s/.*"name":"it".*"executable":"\([^"]*\)".*/\1/p' |
    while read -r executable; do cp "$executable" "$programs/tests"; done
cp "${CARGO_TARGET_DIR:-target}/debug/pando" "$programs/"

# A guest in which a memory server did not come up (97) has shown what its threads wait for, and runs once more. It has stalled in
# this way once, emulated. Any other failure is one.
boot=(ci/rxe/boot.sh "$work" ci/rxe/guest.sh "$programs"/{tests,pando})
"${boot[@]}" || { [ $? = 97 ] && echo "== once more" && "${boot[@]}"; }
