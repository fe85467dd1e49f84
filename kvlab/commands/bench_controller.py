"""`kvcast bench controller`: what a directory of many agents and chunks costs its controller."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import tempfile
from pathlib import Path

from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.controller_bench.run import Load, at_size, measure
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json

GROWN_AGENTS = 2000
_SHOWN = {
    "bytes_per_chunk": "bytes a chunk",
    "cpu_us_per_chunk": "us of a core for an announced chunk, told to its followers",
    "announcements_per_s": "announcements a second",
    "bytes_per_claim": "bytes a claim",
    "new_agent_s": "s until a new agent has its snapshot",
    "look_up_ms_p50": "ms for a look-up of 64 chunks (half of them)",
    "look_up_ms_p99": "ms for a look-up of 64 chunks (99 of 100)",
    "probe_ms_max": "ms: the longest block of the loop, at most",
    "status_ms_p99": "ms for Status (99 of 100)",
    "top_ms_p99": "ms for Top (99 of 100)",
    "sigterm_s": "s from SIGTERM to the end",
    "records_refused": "records refused",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark."""
    parser.add_argument("--agents", type=int, default=200, help="agents that speak the protocol (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=1_000_000, help="of all agents (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=50_000, help="new chunks a second (default: %(default)s)")
    parser.add_argument("--followers", type=int, default=10, help="agents told of each chunk (default: %(default)s)")
    parser.add_argument("--claims", type=int, default=1_000_000, help="alive at a time (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of new chunks (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=0, help="that the agents run in (default: cores - 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if the controller refused a record. UsageError for a load that cannot be."""
    processes = args.processes or max(1, (os.cpu_count() or 2) - 1)
    if not 1 <= processes <= args.agents or args.chunks < args.agents or min(args.rate, args.followers) < 1:
        raise UsageError(
            "bench controller: an agent a process, a chunk an agent, a follower, a chunk a second at least"
        )
    load = Load(args.agents, args.chunks, args.rate, args.followers, args.claims, args.seconds, processes)
    console = Terminal()
    with tempfile.TemporaryDirectory(prefix="kvcast-") as folder:
        figures = asyncio.run(measure(load, Path(folder), lambda text: console.print(f"{text} ...")))
    for name, meaning in _SHOWN.items():
        console.print(f"{figures[name]:12.4g} {meaning}")
    grown = at_size(figures, load, GROWN_AGENTS)
    console.print(
        f"{GROWN_AGENTS} agents as busy would take {grown['cores_for_announcements']:.1f} cores, of a process that uses"
        f" one, and {grown['directory_gib']:.2f} GiB"
    )
    machine = {**machine_facts(), "load": os.getloadavg()[0]}
    write_figures(
        console, args.json, {"load": dataclasses.asdict(load), "figures": figures, "grown": grown, "machine": machine}
    )
    return 1 if figures["records_refused"] else 0
