#!/usr/bin/env bash
# Checks the data plane with p4switch's own compiler, and with p4c's back ends where they are on PATH. The last line
# names what was checked, and what was not run for want of a tool; with P4_ALL set, that is a failure.
#
#   tools/check_p4.sh [KVCAST-SWITCH [PYTHON]]
set -euo pipefail
cd "$(dirname "$0")/.."
switch=${1:-kvcast-switch}
python=${2:-python}
program=p4/v1model/kvcast.p4
checked=p4switch
not_run=()
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
    checked+=", p4c"
else
    not_run+=("p4c (no p4c-bm2-ss on PATH)")
fi
echo "Tofino: p4/tna/kvcast.p4"
fit=0
"$python" tools/p4_fit.py || fit=$?
case $fit in
0) checked+=", Tofino" ;;
3) not_run+=("Tofino (no p4c-barefoot or bf-p4c on PATH)") ;; # p4_fit.NOT_RUN
*) exit "$fit" ;;
esac
if [ ${#not_run[@]} -eq 0 ]; then
    echo "checked: $checked"
else
    list=$(printf ', %s' "${not_run[@]}")
    echo "checked: $checked; NOT RUN: ${list:2}"
    [ -z "${P4_ALL:-}" ]
fi
