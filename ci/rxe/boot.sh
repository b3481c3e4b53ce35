#!/usr/bin/env bash
# Boots Debian's kernel in QEMU with a software RDMA device (rdma_rxe) and runs a script there, with programs of this host.
#
#   ci/rxe/boot.sh WORK SCRIPT PROGRAM..
#
# WORK is a folder for what is downloaded and built; SCRIPT runs in the guest's shell, with the programs in its path. The status
# is that of SCRIPT; 99 if the guest never came up. Needs: qemu-system-x86 busybox-static cpio kmod iproute2 ibverbs-providers.
# NO_KVM=1 does not try kvm, GUEST_SECONDS and GUEST_MEMORY (MiB) limit the guest.
set -euo pipefail

work=$(realpath -m "$1") script=$(realpath "$2")
shift 2
mkdir -p "$work"
libraries=usr/lib/x86_64-linux-gnu
kernel=$work/kernel root=$work/root

if [ ! -e "$kernel/done" ]; then
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends/ { print $2; exit }')
    (cd "$work" && apt-get -q download "$package")
    rm -rf "$kernel"
    dpkg -x "$work/${package}"_*.deb "$kernel"
    depmod -b "$kernel" "$(ls "$kernel/lib/modules")"
    rm "$work/${package}"_*.deb
    touch "$kernel/done"
fi
version=$(ls "$kernel/lib/modules")

rm -rf "$root"
mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,etc/libibverbs.d,lib64,modules,"$libraries"/libibverbs}
mkdir -p "$root/lib" && ln -s "../$libraries" "$root/lib/x86_64-linux-gnu"
cp /bin/busybox "$root/bin/" && ln -s busybox "$root/bin/sh"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"

# A program or library with all libraries that it needs.
add() {
    cp -L "$1" "$2"
    ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
        [ -e "$root/$libraries/$(basename "$library")" ] || cp -L "$library" "$root/$libraries/"
    done
}
for program in rdma ip "$@"; do add "$(command -v "$program")" "$root/bin/"; done
for provider in "/$libraries"/libibverbs/librxe*.so; do add "$provider" "$root/$libraries/libibverbs/"; done
# Loaded at run time, so no program names it.
add "/$libraries/libibverbs.so.1" "$root/$libraries/"

# Modules in the order in which they must be loaded; without crc32_generic the device cannot be made.
for module in crc32_generic dummy ib_uverbs rdma_rxe; do
    modprobe -d "$kernel" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$root/modules/"
    basename "$file" >> "$root/etc/modules"
done

cp "$script" "$root/script"
cat > "$root/init" <<'INIT'
#!/bin/sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev; mount -t tmpfs none /tmp
for module in $(cat /etc/modules); do insmod "/modules/$module" || echo "no module $module"; done
ulimit -l unlimited
ip link set lo up
[ -e /sys/class/net/dummy0 ] || ip link add dummy0 type dummy
ip link set dummy0 mtu 4200 up
ip addr add 10.9.9.1/24 dev dummy0
rdma link add rxe0 type rxe netdev dummy0
echo "guest: up"
sh /script
echo "guest: status $?"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initrd"

# Runs the guest with the arguments for its processor, for at most $1 seconds, and gives up after $2 if it is not up by then.
guest() {
    local seconds=$1 patience=$2 log=$work/log
    shift 2
    : > "$log"
    timeout "$seconds" qemu-system-x86_64 -M q35 "$@" -smp 2 -m "${GUEST_MEMORY:-1024}" -nographic -no-reboot -nodefaults \
        -serial stdio -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off" < /dev/null > "$log" 2>&1 &
    local qemu=$!
    for _ in $(seq "$patience"); do
        if grep -q "guest: up" "$log" || ! kill -0 "$qemu" 2>/dev/null; then break; fi
        sleep 1
    done
    if ! grep -q "guest: up" "$log"; then
        kill "$qemu" 2>/dev/null || true
        wait "$qemu" || true
        return 1
    fi
    wait "$qemu" || true
}

# Without the features by which the kernel copies bytes one by one: rdma_rxe is to copy whole words, as a NIC does.
emulated=(-accel "tcg,thread=multi" -cpu max,-erms,-fsrm)
limit=${GUEST_SECONDS:-540}
if [ -z "${NO_KVM:-}" ] && [ -w /dev/kvm ] && guest "$limit" 20 -accel kvm -cpu host,-erms,-fsrm; then :
elif guest "$limit" 60 "${emulated[@]}"; then :
elif guest "$limit" 60 "${emulated[@]}"; then :
else
    cat "$work/log"
    echo "the guest did not come up" >&2
    exit 99
fi
tr -d '\r' < "$work/log"
status=$(tr -d '\r' < "$work/log" | sed -n 's/.*guest: status //p' | tail -n 1)
if [ -z "$status" ]; then
    echo "the guest did not end by itself" >&2
    exit 98
fi
exit "$status"
