"""A running testbed as seen from outside: starts the supervisor, sends it requests."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import STOP_GRACE_S
from bmv2_testbed.network import namespaces
from bmv2_testbed.network.counters import InterfaceCounters
from bmv2_testbed.processes import Outcome, ProcessorTimes, child_environment, last_line, python_module
from bmv2_testbed.spec import CONTROL_SOCKET, Faults, TestbedSpec, Wiring, agent_name


class Testbed:
    """One run. Every method raises TestbedError when the supervisor refuses, in its words, or has ended."""

    __test__ = False

    def __init__(self, pid: int, directory: str) -> None:
        self.pid = pid
        self.directory = Path(directory)
        self._stream = self._connect()

    def _connect(self) -> io.BufferedRWPair:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.directory / CONTROL_SOCKET))
        except OSError as error:
            connection.close()
            raise TestbedError(f"no testbed answers at {self.directory}: {error.strerror}") from error
        stream = connection.makefile("rwb")
        connection.close()
        return stream

    def _ask(self, method: str, **parameters: Any) -> Any:
        try:
            self._stream.write(json.dumps({"method": method, "parameters": parameters}).encode() + b"\n")
            self._stream.flush()
            line = self._stream.readline()
        except OSError as error:
            raise TestbedError(f"the testbed has ended: {error.strerror}") from error
        if not line:
            raise TestbedError("the testbed has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise TestbedError(answer["error"])
        return answer["result"]

    def status(self) -> dict[str, Any]:
        """Spec, processes (exit status, None while running), process ids inside, directory inside."""
        status: dict[str, Any] = self._ask("status")
        return status

    def spec(self) -> TestbedSpec:
        """What it is made of."""
        return TestbedSpec.from_json(json.dumps(self.status()["spec"]))

    def network_of(self, host: int) -> str:
        """Path of a host's network namespace, for processes that enter it. Only where hosts have one."""
        pid = self.status()["pids"][agent_name(host)]
        return f"/proc/{self.pid}/root/proc/{pid}/ns/net"

    def run(self, name: str, place: str, argv: Sequence[str]) -> None:
        """Start a process in a host (`h0`..) or next to the switch (`switch`)."""
        self._ask("run", name=name, place=place, argv=list(argv))

    def wait(self, name: str, timeout_s: float) -> Outcome | None:
        """Wait for a process to end; None if it still runs after timeout_s."""
        answer = self._ask("wait", name=name, timeout_s=timeout_s)
        return None if answer is None else Outcome(**answer)

    def finish(self, name: str, timeout_s: float) -> Outcome:
        """Wait for a process to end with status 0 and forget it; kills it when it does not end in time."""
        outcome = self.wait(name, timeout_s)
        if outcome is None:
            self.kill(name)
            log = self.log(name)
            self._ask("forget", name=name)
            raise TestbedError(f"{name} was not done after {timeout_s:.0f} s: {last_line(log)}")
        self._ask("forget", name=name)
        if outcome.status != 0:
            said = last_line(outcome.stderr or outcome.stdout)
            raise TestbedError(f"{name} ended with status {outcome.status}: {said}")
        return outcome

    def forget(self, name: str) -> None:
        """Drop a process that ended, so that its name is free."""
        self._ask("forget", name=name)

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to a process by name."""
        self._ask("kill", name=name, signal_number=signal_number)

    def restart(self, name: str, *, with_kept: bool = False) -> None:
        """Start a process that ended again, as it was started; `with_kept`: with the files that it gave to be kept for
        that, an agent's pool."""
        self._ask("restart", name=name, with_kept=with_kept)

    def start_daemons_again(self, *, plain: bool, settings: Mapping[str, Any]) -> None:
        """Start agents and the controller again, the latter with other settings and, unless `plain`, with the switch,
        which stays. So no daemon knows anything of what ran before."""
        self._ask("start_daemons_again", plain=plain, settings=dict(settings))

    def await_ready(self, name: str) -> None:
        """Wait until a daemon started again is ready."""
        self._ask("await_ready", name=name)

    def await_cluster(self) -> None:
        """Wait until every agent that runs is attached and the switch, if there is one, is programmed."""
        self._ask("await_cluster")

    def serve_from_switch(self, last_key: bytes, chunks: int, *, unpinned: bool = False) -> None:
        """Have the switch take in the prefix that ends with this chunk, and wait until it serves all of it.

        `unpinned`: no pin is left behind, so nodes may drop their copies.
        """
        self._ask("serve_from_switch", last_key=last_key.hex(), chunks=chunks, unpinned=unpinned)

    def agent_metrics(self, host: int) -> str:
        """An agent's metrics in Prometheus' text format."""
        metrics: str = self._ask("agent_metrics", host=host)
        return metrics

    def counters(self) -> dict[str, InterfaceCounters]:
        """Counters of the hosts' data interfaces."""
        return {host: InterfaceCounters(*values) for host, values in self._ask("counters").items()}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used so far, by process."""
        cpu: dict[str, float] = self._ask("cpu")
        return cpu

    def processor_times(self) -> dict[str, ProcessorTimes]:
        """What each process used of the machine's processors, and what it waited for them."""
        return {name: ProcessorTimes(*times) for name, times in self._ask("processor_times").items()}

    def log(self, name: str) -> str:
        """The last words of a process."""
        log: str = self._ask("log", name=name)
        return log

    def set_link(self, host: str, up: bool) -> None:
        """Cut or mend a host's data link."""
        self._ask("link", place=host, up=up)

    def set_rail(self, host: int, rail: int, up: bool) -> None:
        """Pull or plug a host's cable to a rail."""
        self._ask("rail", host=host, rail=rail, up=up)

    def set_faults(self, faults: Faults, port: int | None = None) -> None:
        """Hurt the frames that leave one switch port, or all of them."""
        self._ask("faults", port=port, faults=asdict(faults))

    def reboot(self, host: int) -> None:
        """Pull the plug of a host that is a guest, and start it again."""
        self._ask("reboot", host=host)

    def reload_program(self) -> None:
        """Load the switch program again: the switch forgets everything."""
        self._ask("reload_program")

    def stop(self) -> None:
        """End the run and wait until the kernel has taken it down."""
        with contextlib.suppress(TestbedError):
            self._ask("stop")
        self.close()
        wait_gone(self.pid, STOP_GRACE_S + 7)

    def close(self) -> None:
        """Let go of the run without ending it."""
        with contextlib.suppress(OSError):
            self._stream.close()


def wait_gone(pid: int, timeout_s: float) -> None:
    """Wait until a process that need not be our child has ended. Raises TestbedError after timeout_s."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    ended = poller.poll(timeout_s * 1000)
    os.close(handle)
    if not ended:
        raise TestbedError(f"process {pid} does not end: kill it with kill -9 {pid}")


def start(spec: TestbedSpec, *, detached: bool = False) -> tuple[Testbed, subprocess.Popen[bytes]]:
    """Start a run and wait until it is up. It ends with this process unless `detached`. Raises TestbedError."""
    argv = python_module("bmv2_testbed.supervisor", *([] if detached else ["--attached"]))
    if spec.wiring is Wiring.NAMESPACES:
        argv = [*namespaces.entry(), *argv]
    with tempfile.TemporaryFile() as errors:
        supervisor = subprocess.Popen(
            argv,
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        supervisor.stdin.write(spec.to_json().encode())
        supervisor.stdin.close()
        line = supervisor.stdout.readline()
        supervisor.stdout.close()
        if line:
            return Testbed(**json.loads(line)), supervisor
        status = supervisor.wait()
        errors.seek(0)
        said = last_line(errors.read().decode(errors="replace"))
        raise TestbedError(said.removeprefix("kvcast testbed: ") + f" (status {status})")


@contextlib.contextmanager
def running(spec: TestbedSpec) -> Iterator[Testbed]:
    """A run for the time of a `with` block."""
    testbed, supervisor = start(spec)
    try:
        yield testbed
    finally:
        testbed.close()
        supervisor.terminate()
        try:
            supervisor.wait(STOP_GRACE_S + 7)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
