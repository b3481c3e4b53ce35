# Guests: Debian's kernel in QEMU, with programs of this host. Sourced by ci/verbs.sh and ci/power.sh.
#
# A guest loads its modules, says "guest: up", runs its script with the programs in its path, says "guest: status N", and ends.
# NO_KVM=1 does not try kvm; GUEST_MEMORY is in MiB.

libraries=usr/lib/x86_64-linux-gnu

guest_packages() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            qemu-system-x86 busybox-static cpio kmod "$@" >/dev/null
    fi
}

# Fetches the kernel to the folder $work/kernel, unless it is there, and begins a file system in $work/root.
begin_guest() {
    kernel=$work/kernel root=$work/root
    mkdir -p "$work"
    if [ ! -e "$kernel/done" ]; then
        local package
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
    mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,etc,lib,lib64,modules,"$libraries"}
    ln -s "../$libraries" "$root/lib/x86_64-linux-gnu"
    cp /bin/busybox "$root/bin/" && ln -s busybox "$root/bin/sh"
    cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
}

# Adds programs or libraries with all libraries that they need to the folder $1.
add_to_guest() {
    local folder=$root/$1 file library
    shift
    mkdir -p "$folder"
    for file in "$@"; do
        cp -L "$file" "$folder/"
        { ldd "$file" 2>/dev/null || true; } | { grep -o '/[^ ]*' || true; } | while read -r library; do
            [ -e "$root/$libraries/$(basename "$library")" ] || cp -L "$library" "$root/$libraries/"
        done
    done
}

# Ends the file system: the guest loads the modules behind $1 and runs the script $1.
end_guest() {
    local script=$1 module file
    shift
    # With all that they need, in the order in which they must be loaded.
    for module in "$@"; do
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
mkdir -p /dev/shm; mount -t tmpfs none /dev/shm
for module in $(cat /etc/modules); do insmod "/modules/$module" || echo "no module $module"; done
echo "guest: up"
sh /script
echo "guest: status $?"
poweroff -f
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initrd"
}

# Starts a guest in the background, as $qemu, for at most $1 seconds; what it says goes to $work/log. Its kernel gets the words $2;
# QEMU gets the other arguments. Fails, with nothing running, if the guest is not up soon. The first guest finds out how to run
# them: with kvm or, if that does not work, emulated.
start_guest() {
    local seconds=$1 words=$2
    shift 2
    # Without the features by which the kernel copies bytes one by one: rdma_rxe is to copy whole words, as a NIC does.
    local kvm="-accel kvm -cpu host,-erms,-fsrm" emulated="-accel tcg,thread=multi -cpu max,-erms,-fsrm"
    if [ -z "${guest_way:-}" ]; then
        if [ -z "${NO_KVM:-}" ] && [ -w /dev/kvm ] && boot_guest 20 "$kvm" "$@"; then
            guest_way=$kvm
            return
        fi
        guest_way=$emulated
    fi
    # One has stalled once.
    boot_guest 60 "$guest_way" "$@" || boot_guest 60 "$guest_way" "$@"
}

boot_guest() {
    local patience=$1 way=$2
    shift 2
    : > "$work/log"
    # shellcheck disable=SC2086
    timeout "$seconds" qemu-system-x86_64 -M q35 $way -smp 2 -m "${GUEST_MEMORY:-1024}" -display none -no-reboot -nodefaults \
        -serial "file:$work/log" -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off $words" "$@" < /dev/null > "$work/qemu" 2>&1 &
    qemu=$!
    if await_guest "guest: up" "$patience"; then return; fi
    kill "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    tail -n 1 "$work/qemu" >&2
    return 1
}

# Waits until the guest has said $1, for at most $2 seconds or until it has ended.
await_guest() {
    local tenths=$(($2 * 10))
    while ! grep -q "$1" "$work/log"; do
        if [ "$tenths" = 0 ] || ! kill -0 "$qemu" 2>/dev/null; then return 1; fi
        sleep 0.1
        tenths=$((tenths - 1))
    done
}

# What the guest said.
guest_log() { tr -d '\r' < "$work/log"; }

# The status of the guest's script; 98 if it did not end by itself.
guest_status() {
    local status
    status=$(guest_log | sed -n 's/.*guest: status //p' | tail -n 1)
    echo "${status:-98}"
}
