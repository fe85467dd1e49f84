#!/usr/bin/env bash
# Makes the virtual environment of UCM's stores on the CPU, named by the first argument, with kvcast and its test tools in
# it. UCM's wheel is built for Python 3.12 (and for CUDA, which its stores do without; tests stand in for torch). Where
# there is no Python 3.12 the folder stays without an interpreter, a line says so, and `make test-engines` goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh
venv=${1:-.venv-ucm}
python=
for candidate in "${PYTHON312:-python3.12}" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python; do
    if "$candidate" -c 'import sys; raise SystemExit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
mkdir -p "$venv"
if [ -z "$python" ]; then
    echo "no Python 3.12 here: UCM's tests are left out; PYTHON312 names one that is not on PATH" >&2
    exit 0
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
install_uv
install --no-deps uc-manager-cuda-cu130==0.8.1
install_kvcast numpy wrapt==1.17.2 msgspec
# It patches engines at each start of Python, and opens a log where that starts. There are no engines here.
rm -f "$venv"/lib/python3.12/site-packages/ucm_patch.pth
