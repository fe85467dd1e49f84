"""The topics of `kvcast doctor`. What a topic checks is a module, `<topic>_checks`, imported only when asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Protocol

from hostagent.config import AgentConfig
from kvcast.doctor.findings import Finding


class Examination(Protocol):
    """What a topic's module offers."""

    def examine(self, config: AgentConfig | None) -> list[Finding]:
        """Look at this machine; `config` is the agent's, if the user named one. Does not raise for what it finds."""
        ...


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic."""

    summary: str
    in_default: bool = True
    """Looked at when no topic is named."""


TOPICS: dict[str, Topic] = {
    "agent": Topic("a node that runs kvcast-agent"),
    "switch": Topic("a machine that runs kvcast-switch"),
    "rdma": Topic("a node whose agent uses its NIC's RDMA", in_default=False),
    "testbed": Topic("a machine that runs the testbed, the demo and the tests"),
}


def examine(topic: str, config: AgentConfig | None) -> list[Finding]:
    """All findings of a topic, in the order of its checks."""
    module: Examination = importlib.import_module(f"kvcast.doctor.{topic}_checks")
    return module.examine(config)
