#!/usr/bin/env bash
# Makes the virtual environment named by the first argument and installs kvcast and its test tools into it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))'; then
    echo "kvcast needs Python 3.11 or newer; $("$python" --version) found. Set PYTHON to a newer one." >&2
    exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" || {
        echo "cannot make a virtual environment: install python3-venv (make system does)" >&2
        exit 1
    }
fi
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
# In two steps: pip does not see that what kvcast-lab wants of kvcast is what lies here, if it is asked for with extras.
pip --editable p4switch --editable client --editable kvproto --editable . --editable lab
pip --editable '.[test]'
