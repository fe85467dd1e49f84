"""What a replay says in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvchunk.sources import ChunkSource
from planner.cluster.options import Sharing
from planner.cluster.requests import Outcome
from planner.network.delivery import Delivery
from planner.network.topology import Topology


class Uplinks:
    """How busy the nodes' uplinks are, second by second."""

    def __init__(self, topology: Topology, delivery: Delivery) -> None:
        self._topology = topology
        self._delivery = delivery
        self._before = np.zeros(topology.nodes)
        self._before_s = 0.0
        self.busiest: list[float] = []
        """Utilisation of the busiest uplink of each second."""
        self.total_bytes = 0.0

    def sample(self, now_s: float) -> None:
        """Called about once a second."""
        sent = self._sent(now_s)
        if now_s > self._before_s:
            rate = (sent - self._before) / (now_s - self._before_s)
            self.busiest.append(float(rate.max()) / self._topology.link_rate)
        self._before, self._before_s = sent, now_s

    def end(self, now_s: float) -> None:
        self.total_bytes = float(self._sent(now_s).sum())

    def _sent(self, now_s: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        self._delivery.network.advance_to(now_s)
        return np.array([self._delivery.network.carried[self._topology.up(n)] for n in range(self._topology.nodes)])


@dataclass(frozen=True, slots=True)
class Management:
    """What managing the pool cost over the whole replay."""

    messages: int
    """Of the control channel, both ways."""
    message_bytes: int
    control_packets: int
    """JOIN, GET, LEAVE on the data network."""
    control_bytes: int
    """Of these, and of TCP's acknowledgements."""
    switch_updates: int
    decisions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """One scenario. Times in seconds, hits as shares of all input tokens. All but `core_cpu_s` is the same each run."""

    sharing: Sharing
    requests: int
    duration_s: float
    tokens: int
    hits: Mapping[str, float]
    """By tier: local, disk (the node's own), holder, cast, switch; `computed` is the rest."""
    refused: float
    """Share of tokens that the pool had and the gate left to the engine."""
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    fetches: int
    fetch_p50_s: float
    fetch_p99_s: float
    saved_s: float
    """Less than computing, all fetches together, by the gates' own reckoning."""
    regret_s: float
    """What fetch decisions lost against the better choice in hindsight."""
    given_up: int
    """Fetches that fell behind: the engine computed what was not here."""
    queue_mean_s: float
    prefill_s: float
    """Engine time of all requests together."""
    engine_busy: float
    """Mean utilisation of the engines."""
    uplink_bytes: float
    uplink_mean: float
    uplink_peak: float
    """Utilisation of the busiest uplink in its busiest second."""
    uplink_p99: float
    """The same in the 99th percentile of seconds."""
    management: Management
    core_cpu_s: float
    """Processor time of the controller's core, as measured on the machine that planned."""

    @property
    def hit(self) -> float:
        """Share of tokens that no engine had to compute."""
        return 1.0 - self.hits["computed"]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sharing": self.sharing.value}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replay counted until its end, of all its nodes together."""

    nodes: int
    duration_s: float
    outcomes: Sequence[Outcome]
    saved_s: float
    regret_s: float
    given_up: int
    busy_s: float
    """Engine time."""
    uplink_bytes: float
    busiest_uplinks: Sequence[float]
    management: Management
    core_cpu_s: float


def figures_of(sharing: Sharing, link_rate: float, cells: Sequence[Measured]) -> ReplayFigures:
    """Sum up the replays of all cells. Of the busiest uplink: the busiest cell's."""
    outcomes = [outcome for cell in cells for outcome in cell.outcomes]
    nodes, duration_s = sum(cell.nodes for cell in cells), max(cell.duration_s for cell in cells)
    node_s = duration_s * nodes
    tokens, uplink_bytes = sum(one.tokens for one in outcomes), sum(cell.uplink_bytes for cell in cells)
    hits = {
        ChunkSource.LOCAL.label: sum(one.local_tokens for one in outcomes),
        ChunkSource.DISK.label: sum(one.disk_tokens for one in outcomes),
        ChunkSource.HOLDER.label: sum(one.holder_tokens for one in outcomes),
        ChunkSource.CAST.label: sum(one.cast_tokens for one in outcomes),
        ChunkSource.SWITCH.label: sum(one.switch_tokens for one in outcomes),
    }
    shares = {source: count / max(1, tokens) for source, count in hits.items()}
    shares["computed"] = 1.0 - sum(shares.values())
    ttft = [one.ttft_s for one in outcomes]
    fetches = [one.fetch_s for one in outcomes if one.fetch_s > 0]
    return ReplayFigures(
        sharing=sharing,
        requests=len(outcomes),
        duration_s=duration_s,
        tokens=tokens,
        hits=shares,
        refused=sum(one.refused_tokens for one in outcomes) / max(1, tokens),
        ttft_mean_s=_mean(ttft),
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p99_s=_quantile(ttft, 0.99),
        fetches=len(fetches),
        fetch_p50_s=_quantile(fetches, 0.5),
        fetch_p99_s=_quantile(fetches, 0.99),
        saved_s=sum(cell.saved_s for cell in cells),
        regret_s=sum(cell.regret_s for cell in cells),
        given_up=sum(cell.given_up for cell in cells),
        queue_mean_s=_mean([one.queue_s for one in outcomes]),
        prefill_s=sum(one.prefill_s for one in outcomes),
        engine_busy=sum(cell.busy_s for cell in cells) / node_s if node_s > 0 else 0.0,
        uplink_bytes=uplink_bytes,
        uplink_mean=uplink_bytes / link_rate / node_s if node_s > 0 else 0.0,
        uplink_peak=max(max(cell.busiest_uplinks, default=0.0) for cell in cells),
        uplink_p99=max(_quantile(cell.busiest_uplinks, 0.99) for cell in cells),
        management=_together([cell.management for cell in cells]),
        core_cpu_s=sum(cell.core_cpu_s for cell in cells),
    )


def _together(parts: Sequence[Management]) -> Management:
    decisions: Counter[str] = Counter()
    for part in parts:
        decisions.update(part.decisions)
    return Management(
        sum(part.messages for part in parts),
        sum(part.message_bytes for part in parts),
        sum(part.control_packets for part in parts),
        sum(part.control_bytes for part in parts),
        sum(part.switch_updates for part in parts),
        dict(sorted(decisions.items())),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0
