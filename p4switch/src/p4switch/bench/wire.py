"""The switch on veth pairs, compared with a bare loop (wire.c) that only forwards between the same interfaces.

Runs in a network namespace of its own. Figures are processor time of the forwarding thread for each packet that arrived
at the far end, and the rate that was reached: on a busy machine the first is the steadier one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from p4switch.bench.packets import GROUP_ALL, Measurement, commit, ethernet, load, mac
from p4switch.build import build_shared_object
from p4switch.errors import SwitchError
from p4switch.runtime import Program, Switch
from p4switch.values import ActionCall, Replica

PORTS = 9
SIZES = (60, 4200)
_CLONE_NEWNET = 0x40000000
SECONDS = 1.0
WARM_UP_SECONDS = 0.2
_THREAD_NAME = "p4switch"


@dataclass(frozen=True, slots=True)
class Flow:
    """Packets that arrived behind a port within some time, and the processor time that forwarding them took."""

    packets: int
    seconds: float
    cpu_ns: int

    @property
    def packets_per_second(self) -> float:
        return self.packets / self.seconds

    @property
    def cpu_ns_per_packet(self) -> float:
        return self.cpu_ns / max(self.packets, 1)

    def measurement(self, name: str, against: Measurement | None = None) -> Measurement:
        """Its figures; the ratio is of speeds by processor time."""
        cpu_ns = self.cpu_ns_per_packet
        if against is None:
            return Measurement(name, self.packets_per_second, cpu_ns)
        ratio = against.ns_per_packet / max(cpu_ns, 1e-9)
        return Measurement(name, self.packets_per_second, cpu_ns, against.name, ratio)


class Wire:
    """The helpers in wire.c."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(build_shared_object("wire", [Path(__file__).parent / "wire.c"])))
        self._flood = library.bench_flood
        self._flood.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_double]
        self._flood.restype = ctypes.c_int64
        self._bare_loop = library.bench_bare_loop
        self._bare_loop.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_double]
        self._bare_loop.restype = ctypes.c_int64

    def bare_loop(self, ports: int, seconds: float) -> None:
        """Forward from sw1 to each of sw2 to sw``ports`` (and back) for that long. Raises SwitchError."""
        names = (ctypes.c_char_p * ports)(*(f"sw{port}".encode() for port in range(1, ports + 1)))
        if self._bare_loop(names, ports, seconds) < 0:
            raise SwitchError("the bare loop cannot use its interfaces")

    @contextmanager
    def flood(self, frame: bytes, seconds: float) -> Iterator[None]:
        """A thread sends ``frame`` from h1 for that long; the context ends with it."""
        sender = threading.Thread(target=self._flood, args=(b"h1", frame, len(frame), seconds))
        sender.start()
        try:
            yield
        finally:
            sender.join()


@contextmanager
def namespace() -> Iterator[None]:
    """The calling thread in a network namespace with veth pairs sw1-h1 to sw9-h9. Raises SwitchError without root."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise SwitchError("the benchmark over interfaces needs root (for a network namespace of its own)")
        for number in range(1, PORTS + 1):
            _ip(f"link add sw{number} mtu 9000 type veth peer name h{number} mtu 9000")
            for name in (f"sw{number}", f"h{number}"):
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
                _ip(f"link set {name} up")
        yield
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def arrived(port: int) -> int:
    """Frames that came out at the far end of a port."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == f"h{port}":
            return int(counters.split()[1])
    raise SwitchError(f"interface h{port} has gone")


def switch_thread_cpu_ns() -> int:
    """Processor time that this process' packet thread has taken. Raises SwitchError when there is none."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == _THREAD_NAME:
            return int((task / "schedstat").read_text().split()[0])
    raise SwitchError("the packet thread is not running")


def measure_while() -> None:
    """The time during which a switch that runs by itself is measured."""
    time.sleep(SECONDS)


def flow(
    wire: Wire, frame: bytes, port: int, cpu_ns: Callable[[], int], work: Callable[[], None] = measure_while
) -> Flow:
    """What arrives behind ``port`` while ``frame`` floods port 1 and ``work`` is done."""
    with wire.flood(frame, SECONDS + 3 * WARM_UP_SECONDS):
        time.sleep(WARM_UP_SECONDS)
        before, started, cpu = arrived(port), time.monotonic(), cpu_ns()
        work()
        return Flow(arrived(port) - before, time.monotonic() - started, cpu_ns() - cpu)


@contextmanager
def _switch(program: Program) -> Iterator[Switch]:
    with Switch() as switch:
        for port in range(1, PORTS + 1):
            switch.add_interface(port, f"sw{port}")
        pipeline = switch.prepare(program)
        batch = pipeline.batch()
        forward = program.action("BenchIngress.forward").index
        batch.insert(program.table("BenchIngress.dmac").index, [(mac(2), 0)], ActionCall(forward, (2,)))
        batch.set_multicast_group(GROUP_ALL, [Replica(port, 1) for port in range(2, PORTS + 1)])
        commit(batch)
        switch.commit(pipeline)
        switch.start()
        yield switch


def forwarding() -> Iterator[Measurement]:
    """Bare loop and switch, to one port and to eight ports, for each size of frame.

    Raises:
        SwitchError: there are no rights to make a namespace.
    """
    wire, program = Wire(), load()
    with namespace():
        for size in SIZES:
            known, unknown = ethernet(mac(2), size), ethernet(mac(99), size)
            bare = _bare(wire, known, 2).measurement(f"veth, {size} B, bare loop")
            yield bare
            bare_copies = _bare(wire, known, PORTS).measurement(f"veth, {size} B, bare loop to eight ports", bare)
            yield bare_copies
            with _switch(program):
                one = flow(wire, known, 2, switch_thread_cpu_ns).measurement(f"veth, {size} B, switch", bare)
                yield one
                copies = flow(wire, unknown, PORTS, switch_thread_cpu_ns)
                yield copies.measurement(f"veth, {size} B, switch to eight ports", one)
                yield copies.measurement(f"veth, {size} B, switch to eight ports", bare_copies)


def _bare(wire: Wire, frame: bytes, last: int) -> Flow:
    return flow(wire, frame, last, time.thread_time_ns, lambda: wire.bare_loop(last, SECONDS))
