"""The other end of `vllm_process`: start an engine through a launcher, send it requests."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmv2_testbed.engines.launcher import ENGINE, LaunchedProcess, Launcher
from bmv2_testbed.errors import TestbedError

START_S = 900.0
"""An engine that ends says so at once: this is for one that hangs."""
STOP_S = 60.0
KNOWN_S = 120.0
CONNECTOR = {
    "kv_connector": "KvcastConnector",
    "kv_connector_module_path": "kvclient.engines.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
CACHE_BYTES = 256 * 2**20
"""Of paged cache: vLLM writes all of it once at start."""
POLL_S = 0.05
CERTAIN_MARGIN = 1e-4
"""A token that leads the second likeliest by less, in log probability, may be another one in another batch: sums of
floats depend on their order, which depends on the requests that are computed together."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine made of one request."""

    tokens: tuple[int, ...]
    first_token_s: float
    """From the request's coming to its first token."""
    first_token_at_s: float
    """When that was, on the machine's monotonic clock."""
    total_s: float
    cached_tokens: int
    finish_reason: str
    margins: tuple[float, ...] = ()
    """By how much each token led the second likeliest, in log probability; empty unless asked for."""
    kv_transfer_params: Mapping[str, Any] | None = None
    """What the engine's connector says of the KV to those who decode."""

    @property
    def certain(self) -> tuple[int, ...]:
        """Leading tokens that no other engine of this model can see differently. Only with `margins`."""
        margins = zip(range(len(self.tokens)), self.margins, strict=True)
        return self.tokens[: next((at for at, margin in margins if margin < CERTAIN_MARGIN), len(self.tokens))]


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
        "kv_cache_memory_bytes": CACHE_BYTES,
        **more,
    }
    if agent_socket is not None:
        connector["kv_connector_extra_config"] = {"socket": agent_socket, **settings}
        arguments["kv_transfer_config"] = connector
    return arguments


def engine_argv(socket_path: Path, arguments: Mapping[str, Any]) -> list[str]:
    """What `vllm_process` is started with."""
    return ["--socket", str(socket_path), "--engine", json.dumps(arguments)]


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
            raise TestbedError("the engine has ended")
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
        hold: tuple[int, Path] | None = None,
        **more: Any,
    ) -> list[Generated | None]:
        """Run prompts together; None for one that was aborted (`abort`: index -> after how many steps). With `hold` the
        engine stands still after so many steps until the file is there.

        More for every request: `kv_transfer_params`, `salt`, `adapter` (name, number, folder), `margins`.
        """
        requests = [
            {"id": f"r{index}", "tokens": list(prompt), "max_tokens": max_tokens, **more}
            for index, prompt in enumerate(prompts)
        ]
        aborts = {f"r{index}": steps for index, steps in (abort or {}).items()}
        held = None if hold is None else (hold[0], str(hold[1]))
        results = self.ask("generate", requests=requests, abort=aborts, hold=held)
        return [_generated(results.get(f"r{index}")) for index in range(len(prompts))]

    def where(self, prompt: Sequence[int]) -> list[tuple[bytes, str]]:
        """(key, name of a `Where`) of each full chunk of a prompt at each worker, as the engine's agent knows it."""
        return [(bytes.fromhex(key), where) for key, where in self.ask("where", tokens=list(prompt))]

    def await_known(self, prompt: Sequence[int], timeout_s: float = KNOWN_S) -> None:
        """Wait until the engine's agent knows where every full chunk of a prompt is."""
        give_up_s = time.monotonic() + timeout_s
        while any(where in ("NOWHERE", "COMPUTING") for _, where in self.where(prompt)):
            if time.monotonic() > give_up_s:
                raise TestbedError(f"an agent's directory does not list a prompt's chunks after {timeout_s:.0f} s")
            time.sleep(POLL_S)

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
        result.get("first_token_at_s", 0.0),
        result["total_s"],
        result["cached_tokens"] or 0,
        str(result["finish_reason"]),
        tuple(result["margins"]),
        result["kv_transfer_params"],
    )


def last_reason(log: str) -> str:
    """The line that says why an engine ended: the last exception's."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reasons = [line for line in lines if "Error: " in line]
    return (reasons or lines or ["it said nothing"])[-1]


@contextlib.contextmanager
def running(
    launcher: Launcher,
    arguments: Mapping[str, Any],
    folder: Path,
    name: str = "engine",
    environment: Mapping[str, str] | None = None,
    *,
    program: str = ENGINE,
    network: str | None = None,
) -> Iterator[Engine]:
    """An engine for the time of a `with` block; its log is `folder/name.log`. Raises TestbedError with its words.

    `program`: a module whose `main` takes what that of `vllm_process` does; `network`: see `Launcher.start`.
    """
    socket_path, log_path = folder / f"{name}.sock", folder / f"{name}.log"
    log_path.unlink(missing_ok=True)
    argv = engine_argv(socket_path, arguments)
    process = launcher.start(argv, log_path, environment or {}, program=program, network=network)
    engine = None
    try:
        engine = _connect(socket_path, process, log_path)
        yield engine
    finally:
        if engine is not None:
            with contextlib.suppress(TestbedError, OSError):
                engine.ask("stop")
            engine.close()
        if engine is None or not process.wait(STOP_S):
            process.kill()
        process.close()
        socket_path.unlink(missing_ok=True)


def _connect(socket_path: Path, process: LaunchedProcess, log_path: Path) -> Engine:
    """Connect as soon as the engine is up."""
    give_up_s = time.monotonic() + START_S
    while not socket_path.exists():
        if not process.is_running:
            raise TestbedError(f"the engine did not start: {last_reason(log_path.read_text(errors='replace'))}")
        if time.monotonic() > give_up_s:
            said = last_reason(log_path.read_text(errors="replace"))
            raise TestbedError(f"the engine was not ready after {START_S:.0f} s: {said}")
        time.sleep(POLL_S)
    return Engine(str(socket_path))
