"""`kvcast bench rdma`: the RDMA transport beside minimal programs, in a guest with soft-RoCE; or reads into a GPU's
memory on a real NIC."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from bmv2_testbed.bench.rdma.guest import RdmaPlan, rdma_figures, rdma_table, run_rdma
from hostagent.config import load
from kvcast.arguments import between, checked, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvdaemon.errors import ConfigError
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json, refusals

WANTED_RATIO: Final = 0.5
"""Of reads into a GPU's memory to reads into DRAM; below it something is in the way between NIC and GPU."""


@checked
def gpu(text: str) -> str:
    """The number of a GPU, or udmabuf."""
    if text != "udmabuf" and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is neither the number of a GPU nor udmabuf")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench rdma`."""
    parser.add_argument(
        "--gpu",
        nargs="?",
        const="0",
        type=gpu,
        metavar="N",
        help="this machine's NIC instead: read into memory of GPU N (default 0) through its dma-buf, compare every"
        " byte, and time it against DRAM; udmabuf: the same with this machine's memory in the GPU's place",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="with --gpu: the agent's, whose address names the NIC"
    )
    parser.add_argument("--rounds", type=whole(1), default=20, help="turns of each program (default 20)")
    parser.add_argument(
        "--slice", type=between(0.25, 10.0), default=0.75, metavar="S", help="seconds of a turn (default 0.75)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where there is no guest or no such memory, or a program failed."""
    console = Terminal()
    if args.gpu is not None and args.config is None:
        raise UsageError("--gpu needs --config agent.yaml: the agent's address names the NIC")
    with refusals(), progress(console) as (say, moved):
        if args.gpu is not None:
            shown, cases = _device_reads(args, say)
        else:
            rounds = run_rdma(RdmaPlan(args.rounds, args.slice), say, moved)
            shown, cases = rdma_table(rounds), rdma_figures(rounds)
    console.print(shown)
    write_figures(console, args.json, {"benchmark": "rdma", "machine": machine_facts(), "cases": cases})
    return 0


def _device_reads(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[RenderableType, list[dict[str, Any]]]:
    """What to show and the figures of reads into a device's memory. Raises TestbedError."""
    from bmv2_testbed.bench.rdma.device_reads import TOPOLOGY, run_device_reads  # and the driver of a GPU

    with refusals(ConfigError):
        config = load(args.config)
    say("reads into a device's memory")
    found = run_device_reads(config.data, args.gpu)
    line = (
        f"{found.memory}: {found.bytes_per_s / 1e9:.3g} GB/s, every byte right;"
        f" {found.ratio:.2f} of DRAM's {found.dram_bytes_per_s / 1e9:.3g} GB/s"
    )
    if found.ratio < WANTED_RATIO:
        line += f"\nslow: {TOPOLOGY}"
    return line, [asdict(found)]
