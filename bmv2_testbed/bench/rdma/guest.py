"""The RDMA transport compared with minimal programs in a guest with two soft-RoCE ports, in rounds of short slices.

From software emulation: ratios say something, rates do not.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table

from bmv2_testbed.bench.rdma.slices import Round, Slice, Spread, rates, ratios
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.guests import image, pair
from bmv2_testbed.guests.machine import Guest
from bmv2_testbed.processes import child_environment, python_module

PROGRAMS: Final[Mapping[str, str]] = {
    "read": "READ, kvcast",
    "read_pyverbs": "READ, pyverbs loop",
    "read_perftest": "READ, ib_read_bw",
    "ud": "UD, kvcast",
    "ud_pyverbs": "UD, pyverbs loop",
}
"""In the order in which they are shown."""
BESIDE: Final[Mapping[str, str]] = {"read": "read_pyverbs", "read_perftest": "read_pyverbs", "ud": "ud_pyverbs"}
"""What a program is compared with."""
_ROUNDS_A_PROCESS = 4
"""After this many rounds everything is created again: queue pairs, windows, interpreters."""
_TIMEOUT_S = 600.0
"""Compiling the data path under emulation is most of the first run."""


@dataclass(frozen=True, slots=True)
class RdmaPlan:
    """`rounds` slices of `slice_s` seconds for each program."""

    rounds: int
    slice_s: float


def run_rdma(plan: RdmaPlan, say: Callable[[str], None], moved: Callable[[float], None]) -> list[Round]:
    """What each program did in each round. Raises TestbedError where there is no guest or a program failed."""
    missing = image.why_not_ready()
    if missing:
        raise TestbedError(missing)
    rounds: list[Round] = []
    say("a guest with two soft-RoCE ports")
    with tempfile.TemporaryDirectory() as directory, pair.running(Path(directory)) as guest:
        say(f"{plan.rounds} rounds of {len(PROGRAMS)} programs")
        while len(rounds) < plan.rounds:
            rounds += rounds_in(guest, plan, min(_ROUNDS_A_PROCESS, plan.rounds - len(rounds)))
            moved(len(rounds) / plan.rounds)
    return rounds


def rounds_in(guest: Guest, plan: RdmaPlan, count: int) -> list[Round]:
    """Run `count` rounds in this guest (`pair`), with all programs started afresh. Raises TestbedError."""
    words = ["--rounds", str(count), "--slice", str(plan.slice_s)]
    environment = child_environment({"PATH": os.environ["PATH"] + ":/usr/sbin:/usr/bin:/sbin:/bin"})
    argv = python_module("bmv2_testbed.bench.rdma.rounds", *words)
    status, out, err = guest.run(argv, environment, _TIMEOUT_S)
    if status != 0:
        raise TestbedError(f"in the guest: {(err or out).strip()[-2000:]}")
    return [{name: Slice(**taken) for name, taken in json.loads(line).items()} for line in out.splitlines()]


def rdma_figures(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """By program: MiB/s and CPU ms per MiB in each round, ratio to the program it is compared with, messages lost."""
    return [
        {
            "program": program,
            "mib_s": [each[program].rate / 2**20 for each in rounds],
            "beside": BESIDE.get(program),
            "ratio": asdict(ratios(rounds, program, BESIDE[program])) if program in BESIDE else None,
            "cpu_ms_mib": [each[program].cpu_s_per_byte * 2**20 * 1e3 for each in rounds],
            "lost": sum(each[program].lost for each in rounds),
        }
        for program in PROGRAMS
    ]


def rdma_table(rounds: Sequence[Round]) -> Table:
    """The table that ends a run."""
    table = Table(
        title=f"in one emulated core: medians of {len(rounds)} rounds (quartiles)",
        box=box.SIMPLE,
        caption="ratio: to the pyverbs loop in the same round; CPU: milliseconds a MiB of the program's own process",
    )
    for heading in ("", "MiB/s", "ratio", "CPU", "lost"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for program, shown in PROGRAMS.items():
        rate = rates(rounds, program)
        cpu_s = statistics.median(each[program].cpu_s_per_byte for each in rounds)
        table.add_row(
            shown,
            _shown(Spread(rate.lower / 2**20, rate.median / 2**20, rate.upper / 2**20), 1),
            _shown(ratios(rounds, program, BESIDE[program]), 2) if program in BESIDE else "",
            f"{cpu_s * 2**20 * 1e3:.0f}" if cpu_s else "",
            str(sum(each[program].lost for each in rounds)),
        )
    return table


def _shown(of: Spread, digits: int) -> str:
    return f"{of.median:.{digits}f} ({of.lower:.{digits}f}-{of.upper:.{digits}f})"
