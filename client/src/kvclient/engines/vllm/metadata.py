"""What scheduler and workers of one engine tell each other with each step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from kvclient.engines.core.requests import Load
from kvclient.engines.core.saves import Save
from kvclient.engines.vllm.facts import ShardFacts, WorkerRank


@dataclass
class StepOrders(KVConnectorMetadata):
    """Scheduler to workers."""

    loads: list[Load] = field(default_factory=list)
    layerwise_loads: list[Load] = field(default_factory=list)
    """Loads that this very step's forward pass waits for, layer by layer."""
    saves: list[Save] = field(default_factory=list)
    namespace: str = ""
    """Under which the saves put chunks."""
    question: int = 0
    """The last one about the weights (`core.generations`): workers answer a new one before they compute."""
    is_anything: bool = False
    """There is something to copy."""
    holds_answers: bool = False
    """A prompt ends with this step that others decode: its answer waits until what was computed is in the pool."""
    is_idle: bool = False
    """Nothing is computed in this step."""
    has_requests: bool = True
    """Without any the engine goes on stepping only for saves."""


NOTHING = StepOrders()
"""What most steps carry. Nobody changes it."""


@dataclass
class StepReports(KVConnectorWorkerMetadata):
    """Workers to scheduler: how many are done with what, and how many of them without success."""

    shards: dict[WorkerRank, ShardFacts] = field(default_factory=dict)
    """What these workers' caches are; each says it once."""
    loads: dict[str, tuple[int, int]] = field(default_factory=dict)
    saves: dict[int, tuple[int, int]] = field(default_factory=dict)
    weights: dict[WorkerRank, tuple[int, str]] = field(default_factory=dict)
    """Question and checksum, by worker: answers, and changes that nobody asked for."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepReports:
        """The reports of another worker added."""
        assert isinstance(other, StepReports)
        self.shards |= other.shards
        self.weights |= other.weights
        for request, (done, failed) in other.loads.items():
            before = self.loads.get(request, (0, 0))
            self.loads[request] = (before[0] + done, before[1] + failed)
        for save, (done, failed) in other.saves.items():
            before = self.saves.get(save, (0, 0))
            self.saves[save] = (before[0] + done, before[1] + failed)
        return self


NO_REPORTS = StepReports()
"""What most steps bring. Nobody changes it."""
