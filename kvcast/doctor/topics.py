"""The topics of `kvcast doctor`. What a topic checks is a module of its own, imported only when asked for."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Protocol

from hostagent.config import AgentConfig
from kvcast.doctor.findings import Finding


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
