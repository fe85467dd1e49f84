"""p4switch and bmv2's simple_switch, one after the other, with the same program, interfaces and traffic.

Needs p4c-bm2-ss and simple_switch or simple_switch_grpc on PATH; without them the part is left out with one line. Rates
are compared, and the processor time of all threads that forward: on a busy machine the second is the steadier one.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p4switch.bench.packets import Measurement, ethernet, mac
from p4switch.bench.wire import Flow, Wire, arrived, flow, namespace, switch_thread_cpu_ns
from p4switch.compiler import compile_program
from p4switch.errors import SwitchError
from p4switch.runtime import Program, Switch

PROGRAM = Path(__file__).parent / "programs" / "peer.p4"
COMPILER = "p4c-bm2-ss"
SWITCHES = ("simple_switch", "simple_switch_grpc")
"""The same engine; either will do."""
_READY_SECONDS_MAX = 30.0
_CASES = (("L2, 60 B", (), 60, 2), ("4 KiB out of registers, 4,200 B", ("MEMORY",), 4200, 1))
"""Name, macros, size of a frame, and the port at which they arrive."""


def tool(*names: str) -> str | None:
    """The first of these programs that is on PATH."""
    return next((path for path in map(shutil.which, names) if path is not None), None)


def comparison() -> Iterator[Measurement]:
    """Both switches for each case; nothing where simple_switch is not installed.

    Raises:
        SwitchError: there are no rights to make a namespace, or simple_switch does not forward.
    """
    compiler, switch = tool(COMPILER), tool(*SWITCHES)
    if compiler is None or switch is None:
        print(f"simple_switch is left out: {COMPILER} or {' and '.join(SWITCHES)} not on PATH", flush=True)
        return
    wire = Wire()
    with namespace():
        for name, macros, size, port in _CASES:
            frame = ethernet(mac(2), size)
            with _simple_switch(compiler, switch, macros) as process:
                _await_first(wire, frame, port, process)
                theirs = flow(wire, frame, port, lambda: process_cpu_ns(process.pid))
            with _p4switch(macros):
                ours = flow(wire, frame, port, switch_thread_cpu_ns)
            yield from compared(name, theirs, ours)


def compared(name: str, theirs: Flow, ours: Flow) -> Iterator[Measurement]:
    """Two flows side by side. Times are processor time; the ratios are of rates, and of processor times."""
    bmv2 = theirs.measurement(f"veth, {name}, simple_switch")
    rates = ours.packets_per_second / max(theirs.packets_per_second, 1e-9)
    yield bmv2
    yield Measurement(f"veth, {name}, p4switch", ours.packets_per_second, ours.cpu_ns_per_packet, bmv2.name, rates)
    yield ours.measurement(f"veth, {name}, p4switch, by processor time", bmv2)


def process_cpu_ns(process: int) -> int:
    """Processor time that all threads of a process have taken so far."""
    tasks = Path(f"/proc/{process}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())


@contextmanager
def _p4switch(macros: tuple[str, ...]) -> Iterator[None]:
    program = Program.load(compile_program(PROGRAM, dict.fromkeys(macros, "1")).shared_object_path)
    with Switch() as switch:
        for port in (1, 2):
            switch.add_interface(port, f"sw{port}")
        switch.commit(switch.prepare(program))
        switch.start()
        yield


@contextmanager
def _simple_switch(compiler: str, switch: str, macros: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs until the end of the context."""
    with tempfile.TemporaryDirectory() as scratch:
        compiled = Path(scratch) / "peer.json"
        flags = [f"-D{macro}" for macro in macros]
        run_tool([compiler, "--arch", "v1model", *flags, str(PROGRAM), "-o", str(compiled)])
        interfaces = [word for number in (1, 2) for word in ("-i", f"{number}@sw{number}")]
        command = [switch, *interfaces, "--log-level", "off", str(compiled)]
        with subprocess.Popen(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.terminate()


def _await_first(wire: Wire, frame: bytes, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline, before = time.monotonic() + _READY_SECONDS_MAX, arrived(port)
    while arrived(port) == before:
        if process.poll() is not None:
            raise SwitchError(f"simple_switch ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise SwitchError(f"simple_switch forwards nothing after {_READY_SECONDS_MAX:.0f} s")
        with wire.flood(frame, 0.01):
            pass


def run_tool(command: list[str]) -> None:
    """Run a compiler. Raises SwitchError with the end of what it says."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise SwitchError(f"{command[0]} refuses the benchmark's program: {done.stderr.strip()[-300:]}")
