"""KvcastConnector whose loads fail now and then, by a seeded generator: before, in the middle of, or after the copy.

vLLM names a connector by its module and class, so the faulty transfers are put in the place of the worker's own.
"""

from __future__ import annotations

import random
from typing import Any

from kvclient.client import AgentUnavailableError
from kvclient.engines.core.requests import Load
from kvclient.engines.transfers import LayerGate, Transfers
from kvclient.engines.vllm import worker
from kvclient.engines.vllm.connector import KvcastConnector

FAILURES = 0.4
"""Share of the loads that fail."""


class FaultyTransfers(Transfers):
    """Raises where an agent that goes away would make it raise."""

    _chance = random.Random(11)

    def _copy_in(self, load: Load, gate: LayerGate | None, progress: Any, after: Any) -> int:
        draw = self._chance.random()
        if draw < FAILURES / 4:
            raise AgentUnavailableError("injected: before the copy")
        count = super()._copy_in(load, gate, progress, after)
        if draw < FAILURES / 2:
            raise AgentUnavailableError("injected: after the copy")
        if draw < FAILURES * 3 / 4:
            raise ZeroDivisionError("injected: a bug")
        if draw < FAILURES:
            return count // 2
        return count


class FaultyConnector(KvcastConnector):
    """Uses them in its workers."""


worker.Transfers = FaultyTransfers  # type: ignore[misc]
