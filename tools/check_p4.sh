#!/usr/bin/env bash
# Checks the data plane with p4switch's own compiler, and with p4c's back ends where they are on PATH.
#
#   tools/check_p4.sh [KVCAST-SWITCH [PYTHON]]
set -euo pipefail
cd "$(dirname "$0")/.."
switch=${1:-kvcast-switch}
python=${2:-python}
program=p4/v1model/kvcast.p4
for size in 256 3840 4096; do
    echo "p4switch: $program -DSEGMENT_BYTES=$size"
    "$switch" --check "$program" -DSEGMENT_BYTES=$size
done
if command -v p4c-bm2-ss >/dev/null; then
    mkdir -p build/p4
    for size in 256 3840 4096; do
        echo "p4c $(p4c-bm2-ss --version 2>&1 | tail -n 1): $program -DSEGMENT_BYTES=$size"
        p4c-bm2-ss --arch v1model -DSEGMENT_BYTES=$size -I p4/include -o build/p4/kvcast-$size.json \
            --p4runtime-files build/p4/kvcast-$size.p4info.txtpb "$program"
    done
else
    echo "skipped p4c: p4c-bm2-ss is not on PATH"
fi
echo "Tofino: p4/tna/kvcast.p4"
"$python" tools/p4_fit.py
