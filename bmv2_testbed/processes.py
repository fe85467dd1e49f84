"""Processes of a run: started somewhere in the network, watched, killed and started again by name.

The supervisor is what a service manager is to a daemon: it hears when the daemon is ready, and keeps the files that the
daemon gives it (a file descriptor store, as systemd's) until somebody says with which of them it starts again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import LOG_TAIL_BYTES, STOP_GRACE_S
from kvdaemon.notify import NOTIFY_VARIABLE


class Process(Protocol):
    """The part of Popen's interface that a supervisor uses; processes in guests have it, too."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Launch(Protocol):
    """Starts argv with this environment, these files as stdout and stderr, and these descriptors open under their own
    numbers, in its place of the network."""

    def __call__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        out: IO[bytes],
        err: IO[bytes],
        descriptors: Sequence[int],
        /,
    ) -> Process: ...


_SPECS = (importlib.util.find_spec(package) for package in ("bmv2_testbed", "kvproto", "kvclient", "p4switch"))
_SEARCH = tuple({str(Path(spec.origin).resolve().parent.parent): None for spec in _SPECS if spec and spec.origin})
"""Where the packages of all distributions were found."""
_NOTIFICATION_BYTES_MAX = 4096
_NOTIFICATION_FILES_MAX = 4
_LISTENING_POLL_S = 0.02
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def python_module(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module of this project with this very interpreter."""
    return [sys.executable, "-m", module, *arguments]


_HAND_OVER = """
import fcntl, os, sys
names, numbers, *argv = sys.argv[1:]
given = [int(number) for number in numbers.split(",")]
aside = [fcntl.fcntl(one, fcntl.F_DUPFD, 3 + len(given)) for one in given]
for one in given:
    os.close(one)
for place, one in enumerate(aside):
    os.dup2(one, 3 + place)
    os.close(one)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(aside)), LISTEN_FDNAMES=names)
os.execvp(argv[0], argv)
"""


def handing_over(kept: Mapping[str, int], argv: Sequence[str]) -> list[str]:
    """Command line of a program that finds these files as sd_listen_fds(3) says. Whoever starts it leaves their
    descriptors open."""
    if not kept:
        return list(argv)
    return [sys.executable, "-c", _HAND_OVER, ":".join(kept), ",".join(map(str, kept.values())), *argv]


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment in which `python_module` finds the project, installed or not."""
    environment = dict(os.environ)
    known = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join((*_SEARCH, known) if known else _SEARCH)
    environment.update(extra or {})
    return environment


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended; `status` is negative for a signal, as in subprocess."""

    status: int
    stdout: str
    stderr: str


@dataclass(slots=True)
class _Running:
    argv: Sequence[str]
    environment: Mapping[str, str]
    launch: Launch
    process: Process
    notifications: socket.socket
    """Where the process says READY=1 (sd_notify), if it does."""
    ready: bool = False
    kept: dict[str, int] = field(default_factory=dict)
    """Descriptors that it gave to be kept for its next start, by name."""

    def hear(self) -> None:
        """Take in what it has said so far (sd_notify(3))."""
        while True:
            try:
                said, given, _, _ = socket.recv_fds(
                    self.notifications, _NOTIFICATION_BYTES_MAX, _NOTIFICATION_FILES_MAX, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            words = dict(line.partition("=")[::2] for line in said.decode().splitlines())
            self.ready |= words.get("READY") == "1"
            name = words.get("FDNAME", "stored")
            if {"FDSTORE", "FDSTOREREMOVE"} & words.keys() and name in self.kept:
                os.close(self.kept.pop(name))
            for descriptor in given:
                self.kept[name] = descriptor

    def is_ready(self) -> bool:
        """Whether it has said so."""
        self.hear()
        return self.ready

    def take_kept(self) -> dict[str, int]:
        """What it gave to be kept, the caller's from now on."""
        self.hear()
        kept, self.kept = self.kept, {}
        return kept

    def close(self) -> None:
        """Hear nothing of it any more, and let go of what it gave."""
        self.notifications.close()
        for descriptor in self.kept.values():
            os.close(descriptor)
        self.kept.clear()


class Supervisor:
    """Owns every process of a run. Names are unique; a name whose process ended may be started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, _Running] = {}

    def start(
        self, name: str, argv: Sequence[str], launch: Launch, environment: Mapping[str, str] | None = None
    ) -> int:
        """Start a process; returns its process id in the supervisor's PID namespace."""
        known = self._running.get(name)
        if known is not None and known.process.poll() is None:
            raise TestbedError(f"process {name} is already running")
        return self._launch(name, argv, environment or {}, launch, {})

    def restart(self, name: str, *, with_kept: bool = False) -> int:
        """Start a process again that has ended, with the same command line in the same place; `with_kept`: with the
        files that it gave to be kept."""
        known = self._get(name)
        if known.process.poll() is None:
            raise TestbedError(f"process {name} is still running: kill it first")
        kept = known.take_kept() if with_kept else {}
        return self._launch(name, known.argv, known.environment, known.launch, kept)

    def _launch(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], launch: Launch, kept: dict[str, int]
    ) -> int:
        self._close_notifications(name)
        address = self._notify_address(name)
        notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        notifications.bind(str(address))
        known = child_environment({**environment, NOTIFY_VARIABLE: str(address)})
        with self._log(name, "out").open("ab") as out, self._log(name, "err").open("ab") as err:
            try:
                process = launch(handing_over(kept, argv), known, out, err, list(kept.values()))
            except OSError as error:
                notifications.close()
                address.unlink()
                for descriptor in kept.values():
                    os.close(descriptor)
                raise TestbedError(f"cannot start {name} ({argv[0]}): {error.strerror}") from error
        self._running[name] = _Running(argv, environment, launch, process, notifications, kept=kept)
        return process.pid

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal; with SIGKILL also wait for the end."""
        process = self._get(name).process
        if process.poll() is None:
            process.send_signal(signal_number)
        if signal_number == signal.SIGKILL:
            process.wait()

    def wait(self, name: str, timeout_s: float) -> Outcome | None:
        """Wait for the end; None: still running after timeout_s."""
        process = self._get(name).process
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return Outcome(status, self._read(name, "out"), self._read(name, "err"))

    def forget(self, name: str) -> None:
        """Drop a process that ended and its logs."""
        if self._get(name).process.poll() is None:
            raise TestbedError(f"process {name} is still running")
        self._close_notifications(name)
        del self._running[name]
        for stream in ("out", "err"):
            self._log(name, stream).unlink(missing_ok=True)

    def status(self) -> dict[str, int | None]:
        """Exit status by name; None: running."""
        return {name: entry.process.poll() for name, entry in self._running.items()}

    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by name."""
        return {name: entry.process.pid for name, entry in self._running.items() if entry.process.poll() is None}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds, user and system, used so far by each process that runs."""
        return {name: process_cpu_s(pid) for name, pid in self.pids().items()}

    def processor_times(self) -> dict[str, ProcessorTimes]:
        """Of each process that runs, since its start."""
        return {name: processor_times(pid) for name, pid in self.pids().items()}

    def log_tail(self, name: str, size_bytes: int = LOG_TAIL_BYTES) -> str:
        """The last words of a process on stderr and stdout."""
        self._get(name)
        return (self._read(name, "out")[-size_bytes:] + self._read(name, "err")[-size_bytes:]).strip()

    def await_ready(self, name: str, deadline_s: float) -> None:
        """Wait until a process says READY=1. Raises with its last words if it ends or the deadline passes."""
        entry = self._get(name)
        with contextlib.ExitStack() as closing, select.epoll() as waiting:
            waiting.register(entry.notifications, select.EPOLLIN)
            if entry.process.poll() is None:
                ended = os.pidfd_open(entry.process.pid)
                closing.callback(os.close, ended)
                waiting.register(ended, select.EPOLLIN)
            while not entry.is_ready():
                if entry.process.poll() is not None:
                    said = last_line(self.log_tail(name))
                    raise TestbedError(
                        f"{name} ended with status {entry.process.returncode} before it was ready: {said}"
                    )
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TestbedError(f"{name} is not ready in time: {last_line(self.log_tail(name))}")
                waiting.poll(left_s)

    def stop_all(self) -> None:
        """End everything: first politely, after STOP_GRACE_S by force."""
        running = [entry.process for entry in self._running.values() if entry.process.poll() is None]
        for process in running:
            process.terminate()
        deadline_s = time.monotonic() + STOP_GRACE_S
        for process in running:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in self._running:
            self._close_notifications(name)

    def _get(self, name: str) -> _Running:
        try:
            return self._running[name]
        except KeyError:
            raise TestbedError(f"no process {name}; there are {', '.join(sorted(self._running)) or 'none'}") from None

    def _close_notifications(self, name: str) -> None:
        entry = self._running.get(name)
        if entry is not None:
            entry.close()
            self._notify_address(name).unlink(missing_ok=True)

    def _notify_address(self, name: str) -> Path:
        return self._directory / f"{name}.notify"

    def _log(self, name: str, stream: str) -> Path:
        return self._directory / f"{name}.{stream}"

    def _read(self, name: str, stream: str) -> str:
        return self._log(name, stream).read_text(errors="replace")


def process_cpu_s(pid: int) -> float:
    """CPU seconds used so far by a process, 0.0 if it has ended. Source: /proc/PID/stat fields 14 and 15."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Of a process, all of its threads together, in seconds."""

    used_s: float
    waited_s: float
    """It could have run, and no processor was free for it."""

    def __add__(self, other: ProcessorTimes) -> ProcessorTimes:
        return ProcessorTimes(self.used_s + other.used_s, self.waited_s + other.waited_s)

    def since(self, before: ProcessorTimes) -> ProcessorTimes:
        """The increase since `before`, without threads that ended meanwhile."""
        return ProcessorTimes(max(0.0, self.used_s - before.used_s), max(0.0, self.waited_s - before.waited_s))


def processor_times(pid: int) -> ProcessorTimes:
    """Of the threads that a process has. Source: /proc/PID/task/*/schedstat (docs.kernel.org/scheduler/sched-stats)."""
    used_ns = waited_ns = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            used, waited, _ = file.read_text().split()
            used_ns, waited_ns = used_ns + int(used), waited_ns + int(waited)
    return ProcessorTimes(used_ns / 1e9, waited_ns / 1e9)


def await_listening(server: subprocess.Popen[bytes], name: str, address: str, port: int, patience_s: float) -> None:
    """Return when a server that does not notify takes connections. Raises TestbedError, and ends the server, when it
    takes too long."""
    give_up_s = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, port), patience_s):
            return
        if time.monotonic() > give_up_s or server.poll() is not None:
            server.kill()
            server.wait()
            raise TestbedError(f"{name} does not listen at {address}:{port}")
        time.sleep(_LISTENING_POLL_S)


def last_line(text: str) -> str:
    """The last line of an output, for a message of one line."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
