"""`kvcast doctor`: what on this machine keeps kvcast from running or slows it down, and what to do about it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from hostagent.config import AgentConfig, load
from kvcast.cli import UsageError
from kvcast.doctor.findings import Finding, Level
from kvcast.doctor.topics import TOPICS, examine
from kvcast.operator import console, print_json
from kvproto.daemon.errors import ConfigError

_STYLES = {Level.OK: "green", Level.NOTE: "dim", Level.SLOW: "yellow", Level.MISSING: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast doctor [TOPIC ...]`."""
    summaries = "; ".join(f"{name}: {topic.summary}" for name, topic in TOPICS.items())
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"{summaries} (default: what is common)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the agent's configuration: its interface, sizes, controller"
    )
    parser.add_argument(
        "--gpu",
        nargs="?",
        const="0",
        metavar="N",
        help="with the topic rdma: read into memory of GPU N (default 0) through its dma-buf, compare every byte, say"
        " how fast; udmabuf: the same with this machine's memory in the GPU's place",
    )
    parser.add_argument("--json", action="store_true", help="for programs: JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Examine, show; 1 when something that is needed is missing."""
    unknown = [name for name in args.topics if name not in TOPICS]
    if unknown:
        raise UsageError(f"no topic {unknown[0]}: choose among {', '.join(TOPICS)}")
    config = _config(args.config)
    _check_gpu(args, config)
    chosen = args.topics or [name for name, topic in TOPICS.items() if topic.in_default]
    found = {name: examine(name, config) for name in chosen}
    if args.gpu is not None and config is not None:
        # Only for who asks: it takes a second, and loads the driver of a GPU.
        from kvcast.doctor import reads_into

        found["rdma"] += reads_into.examine(config, args.gpu)
    if args.json:
        print_json([{"topic": name, **asdict(finding)} for name, findings in found.items() for finding in findings])
    else:
        _show(found)
    return int(any(finding.level is Level.MISSING for findings in found.values() for finding in findings))


def _check_gpu(args: argparse.Namespace, config: AgentConfig | None) -> None:
    if args.gpu is None:
        return
    if args.gpu != "udmabuf" and not (args.gpu.isascii() and args.gpu.isdigit()):
        raise UsageError(f"--gpu {args.gpu}: give the number of a GPU, or udmabuf")
    if "rdma" not in args.topics:
        raise UsageError("--gpu belongs to the topic rdma: kvcast doctor rdma --gpu --config agent.yaml")
    if config is None:
        raise UsageError("--gpu needs --config agent.yaml: the agent's address tells which NIC")


def _config(path: Path | None) -> AgentConfig | None:
    if path is None:
        return None
    try:
        return load(path)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _show(found: dict[str, list[Finding]]) -> None:
    out = console()
    for name, findings in found.items():
        table = Table(box=None, pad_edge=False, header_style="bold", title=f"{name}: {TOPICS[name].summary}")
        table.title_justify, table.title_style = "left", "bold"
        for heading in ("CHECK", "FOUND", "WANTED", "", "REMEDY"):
            table.add_column(heading, overflow="fold")
        for finding in findings:
            level = f"[{_STYLES[finding.level]}]{finding.level}[/]"
            table.add_row(*map(escape, (finding.check, finding.found, finding.wanted)), level, escape(finding.remedy))
        out.print(table)
        out.print()
