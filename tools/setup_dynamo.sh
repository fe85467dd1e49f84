#!/usr/bin/env bash
# Makes the virtual environment of Dynamo's router, named by the first argument, with kvcast and its test tools in it.
# Dynamo's wheels name engines, none of which its router needs; what it imports is listed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh
venv=${1:-.venv-dynamo}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
install_uv
install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
install_kvcast msgspec pyzmq uvloop 'pydantic<=2.13.5' prometheus-client
"$venv/bin/python" -c 'from dynamo.llm import SelectionService'
