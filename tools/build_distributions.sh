#!/usr/bin/env bash
# Builds the distributions into the folder named by the first argument: an sdist of each, and from it the wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh
out=${1:-dist}
venv=build/venv-build
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Each is built twice in an empty environment of its own, which uv makes much sooner than pip.
install_uv 'build>=1.2'
mkdir -p "$out"
rm -f "$out"/kvcast-*.whl "$out"/kvcast-*.tar.gz "$out"/{kvcast_client,kvcast_lab,kvproto,p4switch}-*.{whl,tar.gz}
for distribution in client kvproto p4switch . lab; do
    "$venv/bin/python" -m build --installer uv --outdir "$out" "$distribution" >/dev/null
done
ls "$out"
