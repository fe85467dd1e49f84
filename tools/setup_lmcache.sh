#!/usr/bin/env bash
# Makes the virtual environment of LMCache on the CPU, named by the first argument, with kvcast and its test tools in
# it. An LMCache server needs no kvcast beyond kvcast-client; the rest is for the testbed around it.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh
venv=${1:-.venv-lmcache}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Where the machine's package sources have torch built for CPUs, pip knows them and uv does not.
install_uv torch==2.13.0
# Wheels only: nothing is compiled here.
wheels() { install --no-build "$@"; }
# LMCache's wheel names CUDA's packages, none of which a CPU uses; what it imports on the way to a server is listed.
wheels torch==2.13.0 'numpy<=2.2.6' aiofile aiofiles blake3 aiohttp awscrt cryptography fastapi httpx \
	'huggingface_hub>=1.5.0' msgspec numba nvtx 'opentelemetry-api<=1.40.0' opentelemetry-sdk \
	opentelemetry-exporter-otlp 'opentelemetry-exporter-prometheus<=0.61b0' 'prometheus_client<=0.24.1' psutil \
	py-cpuinfo pyyaml pyzmq 'grpcio>=1.78' 'protobuf<7,>=6.31.1' redis safetensors sortedcontainers \
	'transformers>=5.4' uvicorn httptools cachetools
wheels --no-deps lmcache==0.5.6
install_kvcast
"$venv/bin/python" -c 'import torch; assert not torch.version.cuda, "a CPU build of torch is needed"'
