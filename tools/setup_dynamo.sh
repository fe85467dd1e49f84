#!/usr/bin/env bash
# Makes the virtual environment of Dynamo's router, named by the first argument, with kvcast and its test tools in it.
# Dynamo's wheels name engines, none of which its router needs; what it imports is listed.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv-dynamo}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
pip msgspec pyzmq uvloop 'pydantic<=2.13.5' prometheus-client \
	--editable p4switch --editable client --editable kvproto --editable . --editable lab 'pytest>=8.0' 'hypothesis>=6.100'
"$venv/bin/python" -c 'from dynamo.llm import SelectionService'
