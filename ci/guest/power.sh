#!/bin/sh
# What ci/power.sh runs in the guest, whose power is cut meanwhile: the words of the kernel say what was answered before.
set -eu
word() { sed -n "s/.*$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
stty -F /dev/ttyS1 raw -echo
mkdir -p /disk
mount -t ext4 /dev/vda /disk
PANDO_TEST_PATH=/disk PANDO_TEST_ANSWERS=/dev/ttyS1 PANDO_TEST_ANSWERED="$(word answered)" PANDO_TEST_PLAN="guest/$(word round)" killed
