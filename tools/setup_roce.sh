#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that guests with soft-RoCE need, and builds what they boot.
# With PYTHON set, that interpreter builds it (it has to have the project's dependencies).
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup_system.sh \
    qemu-system-x86 \
    busybox-static iproute2 \
    libibverbs1 ibverbs-providers ibverbs-utils perftest python3-pyverbs
python=${PYTHON:-python3}
# Guests see this environment, and write no bytecode into it: what is not compiled they compile at each start, emulated.
"$python" -c 'import hostagent.daemon, bmv2_testbed.bench.holder, bmv2_testbed.bench.reader, pytest, hypothesis' ||
    echo "guests will start slowly: $python lacks what they run" >&2
exec "$python" -m bmv2_testbed.guests.image
