#!/usr/bin/env bash
# Makes the virtual environment of SGLang on the CPU, named by the first argument, with kvcast and its test tools in it.
# Engines need no kvcast beyond kvcast-client; the rest is for the testbed around them.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/environment.sh
venv=${1:-.venv-sglang}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
# Where the machine's package sources have torch built for CPUs, pip knows them and uv does not.
install_uv torch==2.13.0
# Wheels only: nothing is compiled here.
wheels() { install --no-build "$@"; }
# SGLang's wheel names CUDA's kernels and torch's vision and audio, none of which a CPU or a text model uses; what it
# imports on the way to an engine is listed instead. Tests put a stand-in for sgl_kernel on the path.
wheels torch==2.13.0 numba==0.65.1 transformers==5.19.0 tokenizers==0.23.2 openai==2.8.0 openai-harmony==0.0.4 \
	aiohttp blobfile cachetools compressed-tensors distro einops fastapi interegular IPython llguidance msgspec ninja \
	numpy nvidia-ml-py orjson 'outlines>=0.1.11' packaging partial_json_parser pillow prometheus-client psutil \
	pybase64 pydantic python-multipart pyzmq regex requests scipy sentencepiece setproctitle soundfile tiktoken tqdm \
	uvicorn uvloop watchfiles xxhash zstandard anthropic triton dill gguf easydict datasets modelscope py-spy mistral_common
wheels --no-deps sglang==0.5.23 xgrammar==0.2.7 apache-tvm-ffi
# FlashInfer's kernels are for GPUs, its references in torch are not: tests hold our copies against them. In a folder of
# its own, where SGLang does not find it.
wheels --no-deps --target "$venv/flashinfer" flashinfer-python==0.7.2.post1
install_kvcast
"$venv/bin/python" -c 'import torch; assert not torch.version.cuda, "a CPU build of torch is needed"'
