"""Engines that start quickly: one process imports vLLM, and every engine is forked from it.

Importing vLLM costs more than all the rest of starting a small engine. The process that forks runs no threads, does
nothing else, and ends with the one that started it; so do its engines.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bmv2_testbed.engines.vllm_process import ENVIRONMENT
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.namespaces import enter_network
from bmv2_testbed.processes import child_environment

MODULE = "bmv2_testbed.engines.launcher"
ENGINE = "bmv2_testbed.engines.vllm_process"
REQUEST_BYTES_MAX = 65536
THREADLESS = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's library would start threads when it is imported. Engines compute with torch's."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""For engines that share processors: OpenMP's threads wait for each other in every layer, turning, and get nowhere when
there are more of them than processors."""
PR_SET_PDEATHSIG = 1
IMPORTED = (
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "kvclient.engines.vllm.connector",
)
"""What the engine of a small model imports."""


class LaunchedProcess:
    """A process that is not a child of this one, held by its pidfd."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self._handle = handle
        self._ended = select.poll()
        self._ended.register(handle, select.POLLIN)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.poll(0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it goes on."""
        return bool(self._ended.poll(timeout_s * 1000))

    def terminate(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)

    def kill(self) -> None:
        """End it by force and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self._ended.poll()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)


class Launcher:
    """The process that forks engines, seen from outside."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        """`environment`: what libraries read when they are loaded.

        Raises TestbedError, with the last words in `log`, when vLLM cannot be imported.
        """
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(log, "wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno())],
                env=child_environment({"PYTHONUNBUFFERED": "1", **THREADLESS, **environment}),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )
        if not self._requests.recv(1):
            self._process.wait()
            raise TestbedError(f"no engine can be started: {log.read_text(errors='replace').strip()[-300:]}")

    def start(
        self,
        argv: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        program: str = ENGINE,
        network: str | None = None,
    ) -> LaunchedProcess:
        """Fork an engine; `argv` as the module `program` takes it, what it says goes to `log`.

        `network`: path of the network namespace that it is to see instead of this one.
        """
        request = {
            "program": program,
            "argv": list(argv),
            "log": str(log),
            "environment": dict(environment),
            "network": network,
        }
        self._requests.send(json.dumps(request).encode())
        answer, handles, _, _ = socket.recv_fds(self._requests, 64, 1)
        if not handles:
            raise TestbedError("the process that starts engines has ended")
        return LaunchedProcess(int(answer), handles[0])

    def close(self) -> None:
        """End it. Engines that still run are ended with it."""
        self._requests.close()
        self._process.wait()


@contextlib.contextmanager
def launching(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Launcher]:
    """A launcher for the time of a `with` block; its log is `folder/launcher.log`."""
    launcher = Launcher(folder / "launcher.log", environment or {})
    try:
        yield launcher
    finally:
        launcher.close()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _import_engine() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    # Objects that exist now live as long as the forks: their collectors need not look at them.
    gc.collect()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"importing vLLM left {threads - 1} threads behind: it cannot be forked")


def _fork_engines(requests: socket.socket) -> dict[str, Any] | None:
    """Returns in each engine with its request, and with None when the launcher is to end."""
    while received := requests.recv(REQUEST_BYTES_MAX):
        pid = os.fork()
        if pid == 0:
            requests.close()
            request: dict[str, Any] = json.loads(received)
            return request
        # Not reaped before its handle is there, so that the number cannot be anybody else's.
        handle = os.pidfd_open(pid)
        socket.send_fds(requests, [str(pid).encode()], [handle])
        os.close(handle)
        _reap()
    return None


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run(handle: int) -> int:
    """Serve the requests that come through `handle`; in an engine, be it."""
    _end_with_parent()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _import_engine()
    requests = socket.socket(fileno=handle)
    requests.send(b"+")
    request = _fork_engines(requests)
    if request is None:
        return 0
    _end_with_parent()
    os.environ.update(request["environment"])
    with open(request["log"], "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if request["network"] is not None:
        enter_network(request["network"])
    status = importlib.import_module(request["program"]).main(request["argv"])
    sys.stdout.flush()
    # The engine has given everything back; taking the interpreter apart would take as long as all of that.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1])))
