#!/usr/bin/env bash
# Makes the virtual environment of vLLM with LMCache's connector, named by the first argument: what .venv-vllm has, and
# LMCache beside it. torch is there once.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv-chain}
vllm=$PWD/.venv-vllm
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
packages=$("$vllm/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$packages')" >"$site/_vllm.pth"
# LMCache's wheel names CUDA's packages, none of which a CPU uses; what it imports beyond vLLM's packages is listed.
"$vllm/bin/python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-deps \
	--only-binary :all: lmcache==0.5.6 aiofile caio aiofiles awscrt nvtx redis sortedcontainers cachetools httptools py-cpuinfo
"$venv/bin/python" -c 'import kvclient, lmcache, torch, vllm; assert not torch.version.cuda'
