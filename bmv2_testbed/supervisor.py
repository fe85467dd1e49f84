"""The process that owns a run: builds the network, starts the daemons, answers requests on a UNIX socket.

`python -m bmv2_testbed.supervisor` reads a TestbedSpec as JSON from stdin, makes the namespaces (or, for guests, a
directory and a janitor), and prints one line of JSON when everything is up: {"pid": .., "directory": ..}. Whatever ends
it ends the run: see bmv2_testbed.network.namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from types import FrameType
from typing import Any, Final

from bmv2_testbed.cluster import Cluster
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import GUEST_START_DEADLINE_S, RPC_LINE_BYTES_MAX, START_DEADLINE_S
from bmv2_testbed.network import namespaces
from bmv2_testbed.spec import CONTROL_SOCKET, Faults, TestbedSpec, Wiring

_SHM_SPARE_BYTES: Final = 512 * 2**20


def start_deadline_s(spec: TestbedSpec) -> float:
    """How long a whole run, or a daemon of it, may take to be ready."""
    return GUEST_START_DEADLINE_S if spec.wiring is Wiring.GUESTS else START_DEADLINE_S


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


class Requests:
    """Requests whose parameters or results are other ones on the wire; every public method is one request."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def status(self) -> dict[str, Any]:
        cluster = self._cluster
        return {
            "spec": json.loads(cluster.spec.to_json()),
            "processes": cluster.processes.status(),
            "pids": cluster.processes.pids(),
            "directory": str(cluster.directory),
        }

    def wait(self, name: str, timeout_s: float) -> dict[str, Any] | None:
        outcome = self._cluster.processes.wait(name, timeout_s)
        return None if outcome is None else asdict(outcome)

    def start_daemons_again(self, plain: bool, settings: dict[str, Any]) -> None:
        self._cluster.start_daemons_again(plain, settings, self._deadline_s())

    def await_ready(self, name: str) -> None:
        self._cluster.await_ready(name, self._deadline_s())

    def counters(self) -> dict[str, tuple[int, ...]]:
        return {host: astuple(value) for host, value in self._cluster.counters().items()}

    def processor_times(self) -> dict[str, tuple[float, float]]:
        return {name: astuple(times) for name, times in self._cluster.processes.processor_times().items()}

    def faults(self, port: int | None, faults: dict[str, float]) -> None:
        self._cluster.set_faults(port, Faults(**faults))

    def await_cluster(self) -> None:
        self._cluster.await_cluster(self._deadline_s())

    def serve_from_switch(self, last_key: str, chunks: int, unpinned: bool) -> None:
        self._cluster.serve_from_switch(bytes.fromhex(last_key), chunks, unpinned, self._deadline_s())

    def _deadline_s(self) -> float:
        return time.monotonic() + start_deadline_s(self._cluster.spec)


def methods(cluster: Cluster, stop: threading.Event) -> dict[str, Callable[..., Any]]:
    """What a client may ask of a running testbed, by name."""
    requests, processes = Requests(cluster), cluster.processes
    return {
        **{name: getattr(requests, name) for name in vars(Requests) if not name.startswith("_")},
        "run": cluster.run,
        "restart": cluster.restart,
        "reboot": cluster.reboot,
        "reload_program": cluster.reload_program,
        "agent_metrics": cluster.agent_metrics,
        "link": cluster.network.set_link,
        "rail": cluster.network.set_rail,
        "forget": processes.forget,
        "kill": processes.kill,
        "cpu": processes.cpu_s,
        "log": processes.log_tail,
        "stop": stop.set,
    }


class _Handler(socketserver.StreamRequestHandler):
    """One connection: a line of JSON in, a line of JSON out, until the client goes."""

    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline(RPC_LINE_BYTES_MAX):
            self.wfile.write(json.dumps(self.server.answer(line)).encode() + b"\n")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, methods: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(path, _Handler)
        self._methods = methods

    def answer(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
            method = self._methods[message["method"]]
            return {"result": method(**message.get("parameters", {}))}
        except TestbedError as error:
            return {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"bad request: {type(error).__name__}: {error}"}


def _serve(spec: TestbedSpec, directory: Path, report: Callable[[], None]) -> int:
    """Bring the run up, report that, serve until asked to stop. Returns the exit status."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    stop = threading.Event()
    cluster = None
    try:
        cluster = Cluster(spec, directory)
        cluster.start(time.monotonic() + start_deadline_s(spec))
        with _Server(str(directory / CONTROL_SOCKET), methods(cluster, stop)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            report()
            stop.wait()
            server.shutdown()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if cluster is not None:
            cluster.stop()
    return 0


def _report(pid: int, directory: str) -> None:
    print(json.dumps({"pid": pid, "directory": directory}), flush=True)


def _run_namespaces(spec: TestbedSpec) -> int:
    ready_read, ready_write = os.pipe()

    def body() -> int:
        os.close(ready_read)
        return _serve(spec, Path(namespaces.PRIVATE_DIRECTORY), lambda: void(os.write(ready_write, b"\n")))

    shm_bytes = spec.hosts * spec.pool_bytes + _SHM_SPARE_BYTES
    pid, wait = namespaces.run_in_private_namespaces(body, shm_bytes)
    os.close(ready_write)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGTERM))
    if os.read(ready_read, 1):
        # The directory is on a tmpfs that only the run sees; /proc shows it to processes that may trace the supervisor.
        _report(pid, f"/proc/{pid}/root{namespaces.PRIVATE_DIRECTORY}")
    return wait()


def _run_guests(spec: TestbedSpec) -> int:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    directory = tempfile.mkdtemp(prefix="kvcast-", dir=base)
    alive_read, alive_write = os.pipe()
    if os.fork() == 0:
        os.close(alive_write)
        _janitor(alive_read, Path(directory))
    os.close(alive_read)
    os.set_inheritable(alive_write, False)
    return _serve(spec, Path(directory), lambda: _report(os.getpid(), directory))


def _janitor(alive: int, directory: Path) -> None:
    """Wait, in a session of its own, until the supervisor has ended, by whatever signal; then remove its files."""
    os.setsid()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    while os.read(alive, 1):
        pass
    # Processes die with the supervisor by their parent-death signal, and pools with their agents; files do not.
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def void(_value: object) -> None:
    """Make a statement of an expression."""


def main() -> int:
    """Entry point; a TestbedError is one line on stderr and status 1."""
    if "--attached" in sys.argv[1:]:
        namespaces.die_with_parent()
    try:
        spec = TestbedSpec.from_json(sys.stdin.read())
        return _run_namespaces(spec) if spec.wiring is Wiring.NAMESPACES else _run_guests(spec)
    except TestbedError as error:
        print(f"kvcast testbed: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
