"""The other end of `vllm_process`: start an engine, send it requests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import child_environment

START_S = 300.0
CONNECTOR = {
    "kv_connector": "KvcastConnector",
    "kv_connector_module_path": "hostagent.engines.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine made of one request."""

    tokens: tuple[int, ...]
    first_token_s: float
    """From the request's coming to its first token."""
    total_s: float
    cached_tokens: int
    finish_reason: str


def engine_arguments(model: Path, agent_socket: str | None, *, chunk_tokens: int = 128, **more: Any) -> dict[str, Any]:
    """vLLM's arguments for a small model; without `agent_socket` an engine without kvcast.

    `settings` among `more` are the connector's, `connector` replaces fields of the transfer configuration.
    """
    settings = {"chunk_tokens": chunk_tokens, **more.pop("settings", {})}
    connector = {**CONNECTOR, **more.pop("connector", {})}
    arguments: dict[str, Any] = {
        "model": str(model),
        "max_model_len": 8192,
        "enforce_eager": True,
        "dtype": "float32",
        "seed": 0,
        **more,
    }
    if agent_socket is not None:
        connector["kv_connector_extra_config"] = {"socket": agent_socket, **settings}
        arguments["kv_transfer_config"] = connector
    return arguments


def engine_argv(socket_path: str, arguments: Mapping[str, Any], *, attached: bool = False) -> list[str]:
    """Command line of an engine."""
    argv = [sys.executable, "-m", "bmv2_testbed.engines.vllm_process", "--socket", socket_path]
    return [*argv, "--engine", json.dumps(arguments), *(["--attached"] if attached else [])]


class Engine:
    """A running engine, seen from outside. Raises TestbedError with the engine's words."""

    def __init__(self, socket_path: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(socket_path)
        except OSError as error:
            connection.close()
            raise TestbedError(f"no engine at {socket_path}: {error.strerror}") from error
        self._stream = connection.makefile("rwb")
        connection.close()

    def ask(self, do: str, **parameters: Any) -> Any:
        """One request and its answer."""
        self._stream.write(json.dumps({"do": do, **parameters}).encode() + b"\n")
        self._stream.flush()
        line = self._stream.readline()
        if not line:
            raise TestbedError("the engine is gone")
        answer = json.loads(line)
        if "error" in answer:
            raise TestbedError(answer["error"])
        return answer.get("result")

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int = 8,
        abort: Mapping[int, int] | None = None,
        **more: Any,
    ) -> list[Generated | None]:
        """Run prompts together; None for one that was aborted (`abort`: index -> after how many steps)."""
        requests = [
            {"id": f"r{index}", "tokens": list(prompt), "max_tokens": max_tokens, **more}
            for index, prompt in enumerate(prompts)
        ]
        aborts = {f"r{index}": steps for index, steps in (abort or {}).items()}
        results = self.ask("generate", requests=requests, abort=aborts)
        return [_generated(results.get(f"r{index}")) for index in range(len(prompts))]

    def metrics(self) -> dict[str, dict[str, float]]:
        """kvcast's metrics in this engine."""
        metrics: dict[str, dict[str, float]] = self.ask("metrics")
        return metrics

    def close(self) -> None:
        """Let go without ending it."""
        with contextlib.suppress(OSError):
            self._stream.close()


def _generated(result: Mapping[str, Any] | None) -> Generated | None:
    if result is None or "tokens" not in result:
        return None
    return Generated(
        tuple(result["tokens"]),
        result.get("first_token_s", 0.0),
        result["total_s"],
        result["cached_tokens"] or 0,
        str(result["finish_reason"]),
    )


def await_engine(socket_path: Path, is_running: Any, log: Any, timeout_s: float = START_S) -> Engine:
    """Connect as soon as the engine is up. `is_running()` and `log()` tell of its process."""
    give_up_s = time.monotonic() + timeout_s
    while not socket_path.exists():
        if not is_running():
            raise TestbedError(f"the engine did not start: {last_reason(log())}")
        if time.monotonic() > give_up_s:
            raise TestbedError(f"the engine was not ready after {timeout_s:.0f} s: {last_reason(log())}")
        time.sleep(POLL_S)
    return Engine(str(socket_path))


def last_reason(log: str) -> str:
    """The line that says why an engine ended: the last exception's."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reasons = [line for line in lines if "Error: " in line]
    return (reasons or lines or ["it said nothing"])[-1]


@contextlib.contextmanager
def running(
    arguments: Mapping[str, Any], folder: Path, name: str = "engine", environment: Mapping[str, str] | None = None
) -> Iterator[Engine]:
    """An engine of one's own for the time of a `with` block; its log is `folder/name.log`."""
    socket_path, log_path = folder / f"{name}.sock", folder / f"{name}.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            engine_argv(str(socket_path), arguments, attached=True),
            env=child_environment({"PYTHONUNBUFFERED": "1", **(environment or {})}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    engine = None
    try:
        engine = await_engine(socket_path, lambda: process.poll() is None, lambda: log_path.read_text(errors="replace"))
        yield engine
    finally:
        if engine is not None:
            with contextlib.suppress(TestbedError, OSError):
                engine.ask("stop")
            engine.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path)
