#!/usr/bin/env bash
# Makes the virtual environment named by the first argument and installs kvcast and its test tools into it.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh
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
install_uv
install --editable p4switch --editable client --editable kvproto --editable '.[test]' --editable lab
