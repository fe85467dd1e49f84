"""`kvcast doctor`: what keeps kvcast from running or slows it down, on this machine or in the cluster, and remedies.

The topics of `kvcast doctor`. What a topic checks is a module of its own, imported only when asked for.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rich.text import Text

from hostagent.config import AgentConfig, load
from kvcast.doctor import cluster
from kvcast.doctor.findings import Finding, Level, Row, laid_out
from kvcast.errors import UsageError
from kvcast.operator import add_common, console, print_json
from kvdaemon.errors import ConfigError


class Examination(Protocol):
    """What a topic's module offers."""

    def examine(self, config: AgentConfig | None) -> list[Finding]:
        """Look at this machine; `config` is the agent's, if the user named one. Does not raise for what it finds."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic."""

    summary: str
    checks: str
    """Name of the module, an `Examination`."""
    in_default: bool = True
    """Looked at when no topic is named."""


TOPICS: dict[str, Topic] = {
    "agent": Topic("a node that runs kvcast-agent", "kvcast.doctor.agent_checks"),
    "switch": Topic("a machine that runs kvcast-switch", "kvcast.doctor.switch_checks"),
    "rdma": Topic("a node whose agent uses its NIC's RDMA", "kvcast.doctor.rdma_checks", in_default=False),
    # Of kvcast-lab, with the testbed itself; who has not installed it is not told what a testbed would need.
    "testbed": Topic(
        "a machine that runs the testbed, the demo and the tests",
        "kvlab.testbed_checks",
        in_default=importlib.util.find_spec("kvlab") is not None,
    ),
}


def examine(topic: str, config: AgentConfig | None) -> list[Finding]:
    """All findings of a topic, in the order of its checks."""
    module: Examination = importlib.import_module(TOPICS[topic].checks)
    return module.examine(config)


CLUSTER = "cluster"
_STYLES = {Level.OK: "green", Level.NOTE: "dim", Level.SLOW: "yellow", Level.MISSING: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast doctor [TOPIC ...]`."""
    summaries = "; ".join(f"{name}: {topic.summary}" for name, topic in TOPICS.items())
    summaries += f"; {CLUSTER}: {cluster.SUMMARY}"
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"{summaries} (default: what is common)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the agent's configuration: its interface, sizes, controller"
    )
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Examine, show; 1 when something that is needed is missing."""
    if CLUSTER in args.topics:
        if len(args.topics) > 1:
            raise UsageError(f"{CLUSTER} stands alone: kvcast doctor {CLUSTER}")
        return cluster.run(args)
    unknown = [name for name in args.topics if name not in TOPICS]
    if unknown:
        raise UsageError(f"no topic {unknown[0]}: choose among {', '.join([*TOPICS, CLUSTER])}")
    config = _config(args.config)
    chosen = args.topics or [name for name, topic in TOPICS.items() if topic.in_default]
    found = {name: examine(name, config) for name in chosen}
    if args.json:
        print_json([{"topic": name, **asdict(finding)} for name, findings in found.items() for finding in findings])
    else:
        _show(found)
    return int(any(finding.level is Level.MISSING for findings in found.values() for finding in findings))


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
        out.print(Text(f"{name}: {TOPICS[name].summary}", "bold"), soft_wrap=True)
        rows = [
            Row(finding.level, _STYLES[finding.level], (finding.check,), _words(finding), finding.remedy)
            for finding in findings
        ]
        for line in laid_out(rows, out.width):
            out.print(line, soft_wrap=True)
        out.print()


def _words(finding: Finding) -> str:
    return finding.found if finding.level is Level.OK else f"{finding.found} (wanted: {finding.wanted})"
