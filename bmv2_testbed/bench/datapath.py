"""What a cast segment costs: processor time at holder and readers, and rate, on loopback without any shaping.

One holder casts to some readers, by the data path and, as the measure, by a C pair that only sends and receives the
same datagrams: one by one, and as many by one buffer as the kernel takes. The ways take turns, so that other load on
the machine affects all alike.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from rich import box
from rich.table import Table

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.processes import python_module

WAYS = ("pair", "buffers", "kvcast")
TITLES = {"pair": "C sendmmsg/recvmmsg", "buffers": "C UDP_SEGMENT/UDP_GRO", "kvcast": "kvcast"}
MEASURE = "buffers"
"""The way that the others are compared with."""


@dataclass(frozen=True, slots=True)
class DatapathPlan:
    """`size_bytes` are cast to each number of readers, `repeat` times by each way."""

    size_bytes: int
    segment_bytes: int
    readers: Sequence[int]
    repeat: int
    ways: Sequence[str] = WAYS


@dataclass(frozen=True, slots=True)
class DatapathFigures:
    """Medians of one way with one number of readers; microseconds of processor time are per segment."""

    way: str
    readers: int
    gbytes_s: float
    """At each reader."""
    ratio: float
    """Of the rate to the measure's; median of the turns, as the next two."""
    holder_ratio: float
    reader_ratio: float
    """Of the processor time."""
    holder_us: float
    reader_us: float
    """Mean of the readers."""
    right: bool
    turns: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Turn:
    seconds: float
    holder_us: float
    reader_us: float
    right: bool


def run_datapath(
    plan: DatapathPlan, say: Callable[[str], None], moved: Callable[[float], None]
) -> list[DatapathFigures]:
    """All numbers of readers, all ways by turns. Raises TestbedError."""
    figures: list[DatapathFigures] = []
    steps = len(plan.readers) * plan.repeat * len(plan.ways)
    step = 0
    for readers in plan.readers:
        turns: dict[str, list[_Turn]] = {way: [] for way in plan.ways}
        for turn in range(plan.repeat):
            for way in plan.ways:
                say(f"{readers} readers, turn {turn + 1}: {TITLES[way]}")
                turns[way].append(_run_turn(plan, way, readers))
                step += 1
                moved(step / steps)
        figures += [_summary(plan, way, readers, turns) for way in plan.ways]
    return figures


def _summary(plan: DatapathPlan, way: str, readers: int, turns: dict[str, list[_Turn]]) -> DatapathFigures:
    mine, measure = turns[way], turns.get(MEASURE, turns[way])
    pairs = list(zip(mine, measure, strict=True))
    return DatapathFigures(
        way=way,
        readers=readers,
        gbytes_s=plan.size_bytes / statistics.median(turn.seconds for turn in mine) / 1e9,
        ratio=statistics.median(base.seconds / turn.seconds for turn, base in pairs),
        holder_ratio=statistics.median(turn.holder_us / base.holder_us for turn, base in pairs),
        reader_ratio=statistics.median(turn.reader_us / base.reader_us for turn, base in pairs),
        holder_us=statistics.median(turn.holder_us for turn in mine),
        reader_us=statistics.median(turn.reader_us for turn in mine),
        right=all(turn.right for turn in mine),
        turns=len(mine),
    )


def _run_turn(plan: DatapathPlan, way: str, readers: int) -> _Turn:
    ports = _free_ports()
    nodes = [_start(plan, way, index, readers, ports) for index in range(-1, readers)]
    try:
        for node in nodes:
            _read_line(node)
        holder, others = nodes[0], nodes[1:]
        # Readers first: those of the pair must be listening when it begins to send.
        for node in (*others, holder):
            _send_line(node)
        reports = [_read_line(node) for node in others]
        if way == "kvcast":
            _send_line(holder)
        held = _read_line(holder)
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    segments = plan.size_bytes // plan.segment_bytes
    return _Turn(
        seconds=max(report["seconds"] for report in reports),
        holder_us=held["cpu_s"] / segments * 1e6,
        reader_us=statistics.mean(report["cpu_s"] for report in reports) / segments * 1e6,
        right=all(report["right"] for report in (held, *reports)),
    )


def _start(plan: DatapathPlan, way: str, index: int, readers: int, ports: tuple[int, int]) -> subprocess.Popen[str]:
    words = ["--way", way, "--index", str(index), "--size", str(plan.size_bytes)]
    words += ["--segment", str(plan.segment_bytes), "--readers", str(readers)]
    words += ["--cast-port", str(ports[0]), "--control-port", str(ports[1])]
    command = python_module("bmv2_testbed.bench.datapath_node", *words)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _send_line(node: subprocess.Popen[str]) -> None:
    pipe = _pipe(node.stdin)
    pipe.write("\n")
    pipe.flush()


def _read_line(node: subprocess.Popen[str]) -> dict[str, Any]:
    line = _pipe(node.stdout).readline()
    if not line:
        raise TestbedError(f"a node of the benchmark ended early, with status {node.wait()}: see its message above")
    report: dict[str, Any] = json.loads(line)
    return report


def _free_ports() -> tuple[int, int]:
    """Two UDP ports of loopback that no process uses."""
    with contextlib.ExitStack() as probes:
        ports: list[int] = []
        for _ in range(2):
            probe = probes.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        return ports[0], ports[1]


def datapath_table(figures: Sequence[DatapathFigures]) -> Table:
    """The table that ends a run."""
    table = Table(
        title="casts on loopback, not shaped",
        box=box.SIMPLE,
        caption="holder, reader: CPU, µs per segment; in brackets: by turns, over C with UDP_SEGMENT/UDP_GRO",
    )
    for heading in ("readers", "by", "GB/s each", "holder", "reader", "right"):
        table.add_column(heading, justify="left" if heading == "by" else "right", no_wrap=True)
    for figure in figures:
        table.add_row(
            str(figure.readers),
            TITLES[figure.way],
            f"{figure.gbytes_s:.3f} ({figure.ratio:.2f})",
            f"{figure.holder_us:.2f} ({figure.holder_ratio:.2f})",
            f"{figure.reader_us:.2f} ({figure.reader_ratio:.2f})",
            "yes" if figure.right else "NO",
        )
    return table
