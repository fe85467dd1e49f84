"""Starts SGLang engines as processes (`sglang_process`) and talks to them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
START_S = 500.0
ANSWER_S = 120.0
PAGE_TOKENS = 16
SHIPPED = {"module_path": "kvclient.engines.sglang.backend", "class_name": "KvcastHiCache"}


def engine_arguments(
    model: Path, agent_socket: str | None, *, layout: str = "page_first_direct", backend: Mapping[str, Any] = SHIPPED
) -> dict[str, Any]:
    """SGLang's, for a small model on the CPU; `agent_socket` None: without a storage tier.

    `backend`: which class SGLang loads, and what else its extra configuration has.
    """
    arguments: dict[str, Any] = {
        "model_path": str(model),
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
        "mem_fraction_static": 0.3,
        "max_total_tokens": 4096,
        "max_running_requests": 2,
        "page_size": PAGE_TOKENS,
        "log_level": "warning",
        "skip_server_warmup": True,
    }
    if agent_socket is None:
        return arguments
    extra = {
        **backend,
        "backend_name": "kvcast",
        "interface_v1": 1,
        "prefetch_threshold": 4 * PAGE_TOKENS,
        "hicache_storage_pass_prefix_keys": True,
        "kvcast": {"socket": agent_socket},
    }
    return arguments | {
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_io_backend": "direct",
        "hicache_mem_layout": layout,
        "hicache_write_policy": "write_through",
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": json.dumps(extra),
    }


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine said, and where the prompt's tokens came from."""

    ids: list[int]
    cached: int
    from_storage: int


def environment() -> dict[str, str]:
    """Of SGLang's processes, without a GPU: stand-ins for its kernels, and one core."""
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return {
        "PYTHONPATH": os.pathsep.join([str(HERE / "standins" / "sglang"), str(ROOT), *inherited]),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


class Engine:
    """One engine. Starting takes a minute of processor time: start several before awaiting the first."""

    def __init__(self, arguments: dict[str, Any], log: Path) -> None:
        around = os.environ | environment()
        around.pop("PYTHONDONTWRITEBYTECODE", None)
        self._log = log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.sglang_process", json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=around,
                cwd=ROOT,
            )

    def await_up(self) -> Self:
        """Wait until it takes requests."""
        assert self._answer(START_S)["up"]
        return self

    def begin(self, ids: list[int], tokens: int = 8) -> None:
        """Ask for `tokens` tokens that follow on `ids`; `generated` tells."""
        self._say({"ids": ids, "tokens": tokens})

    def generated(self) -> Generated:
        """What `begin` asked for."""
        answer = self._answer(ANSWER_S)
        return Generated(answer["ids"], answer["cached"], answer["details"].get("storage", 0))

    def generate(self, ids: list[int], tokens: int = 8) -> Generated:
        """The tokens that follow on `ids`."""
        self.begin(ids, tokens)
        return self.generated()

    def flush(self) -> None:
        """Forget all KV, on the device and in the host pool."""
        self._say({"flush": True})
        assert self._answer(ANSWER_S)["flushed"]

    def update(self, weights: Path, *, flushes: bool = True, version: str | None = None) -> None:
        """Load other weights in place. `flushes`: the engine forgets its KV with it; `version`: the caller's name."""
        self._say({"weights": str(weights), "flushes": flushes, "version": version})
        assert self._answer(ANSWER_S)["updated"]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _say(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self, within_s: float) -> Any:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], within_s)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            tail = self._log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"SGLang's engine does not answer:\n{tail}")
        return json.loads(line)
