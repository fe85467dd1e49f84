"""p4switch and bmv2's simple_switch, one after the other, with the same program, interfaces and traffic.

Needs p4c-bm2-ss and simple_switch or simple_switch_grpc on PATH; without them the part is left out with one line. bmv2
spreads its work over several threads, so rates are compared, not processor time.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p4switch.bench.pipeline import Measurement, ethernet, mac
from p4switch.bench.wire import SECONDS, WARM_UP_SECONDS, Wire, arrived, namespace
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


def _tool(*names: str) -> str | None:
    return next((path for path in map(shutil.which, names) if path is not None), None)


def comparison() -> Iterator[Measurement]:
    """Both switches for each case; nothing where simple_switch is not installed.

    Raises:
        SwitchError: there are no rights to make a namespace, or simple_switch does not forward.
    """
    compiler, switch = _tool(COMPILER), _tool(*SWITCHES)
    if compiler is None or switch is None:
        print(f"simple_switch is left out: {COMPILER} or {' and '.join(SWITCHES)} not on PATH", flush=True)
        return
    wire = Wire()
    with namespace():
        for name, macros, size, port in _CASES:
            frame = ethernet(mac(2), size)
            with _simple_switch(compiler, switch, macros) as process:
                _await_first(wire, frame, port, process)
                theirs = _measured(f"veth, {name}, simple_switch", wire, frame, port)
            yield theirs
            with _p4switch(macros):
                yield _measured(f"veth, {name}, p4switch", wire, frame, port, theirs)


def _measured(name: str, wire: Wire, frame: bytes, port: int, against: Measurement | None = None) -> Measurement:
    with wire.flood(frame, SECONDS + 3 * WARM_UP_SECONDS):
        time.sleep(WARM_UP_SECONDS)
        before, started = arrived(port), time.monotonic()
        time.sleep(SECONDS)
        count, seconds = arrived(port) - before, time.monotonic() - started
    rate = count / seconds
    ns = seconds * 1e9 / max(count, 1)
    if against is None:
        return Measurement(name, rate, ns)
    return Measurement(name, rate, ns, against.name, rate / max(against.packets_per_second, 1e-9))


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
        _run_tool([compiler, "--arch", "v1model", *flags, str(PROGRAM), "-o", str(compiled)])
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


def _run_tool(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise SwitchError(f"{command[0]} refuses the benchmark's program: {done.stderr.strip()[-300:]}")
