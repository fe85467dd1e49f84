#!/usr/bin/env bash
# Makes the virtual environment of p4runtime-shell, the operator's console of a switch, named by the first argument.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv-p4rt-shell}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check p4runtime-shell
