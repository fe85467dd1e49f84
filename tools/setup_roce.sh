#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that guests with soft-RoCE need, and builds what they boot.
# With PYTHON set, that interpreter builds it (it has to have the project's dependencies).
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup_system.sh \
    qemu-system-x86 \
    busybox-static iproute2 \
    libibverbs1 ibverbs-providers ibverbs-utils perftest python3-pyverbs
exec "${PYTHON:-python3}" -m bmv2_testbed.guests.image
