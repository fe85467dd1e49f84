"""What happens when several nodes ask for the same prefix at once: by every way to bring it, against recomputing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.cluster.options import Cluster
from planner.network.delivery import Delivery, Piece, Work
from planner.network.terms import WireTerms
from planner.network.topology import SWITCH, Topology


@dataclass(frozen=True, slots=True)
class Burst:
    """`readers` nodes ask at once. Mean times in seconds until the prefix is at hand."""

    readers: int
    tokens: int
    size_bytes: int
    recompute_s: float
    unicast_s: float
    replicas_s: float
    relay_s: float
    cast_s: float
    switch_s: float
    uplink_unicast: float
    """Bytes on the holder's uplink over the prefix' size."""
    uplink_cast: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bursts(cluster: Cluster, tokens: int, readers: Sequence[int]) -> list[Burst]:
    """One for each number of readers; the prefix is `tokens` long."""
    return [_burst(cluster, tokens, count) for count in readers]


def _burst(cluster: Cluster, tokens: int, readers: int) -> Burst:
    chunks = max(1, tokens // cluster.chunk_tokens)
    size = chunks * cluster.chunk_bytes
    unicast_s, uplink = _fetch(cluster, chunks, [0] * readers, casts=False)
    copies = min(cluster.replicas, readers)
    replicas_s, _ = _fetch(cluster, chunks, [-(reader % copies) for reader in range(readers)], casts=False)
    # A chain of relays: everybody reads from the one before, which reads at the same time.
    relay_s, _ = _fetch(cluster, chunks, list(range(readers)), casts=False, relays=True)
    cast_s, uplink_cast = _fetch(cluster, chunks, [0] * readers, casts=True)
    switch_s, _ = _fetch(cluster, chunks, [None] * readers, casts=True)
    return Burst(
        readers,
        chunks * cluster.chunk_tokens,
        size,
        cluster.engine.prefill_s(0, chunks * cluster.chunk_tokens),
        unicast_s,
        replicas_s,
        relay_s,
        cast_s,
        switch_s,
        uplink / size,
        uplink_cast / size,
    )


def _fetch(
    cluster: Cluster, chunks: int, sources: Sequence[int | None], *, casts: bool, relays: bool = False
) -> tuple[float, float]:
    """Mean time, and bytes on the first holder's uplink. Node 0 and, if `sources` has negative numbers, further nodes
    at the end hold the prefix; reader i is node i + 1; None: the switch serves it."""
    readers = len(sources)
    holders = 1 - min((source for source in sources if source is not None), default=0)
    topology = Topology(readers + holders, cluster.link_rate)
    terms = WireTerms(cluster.segment_bytes, cluster.mtu_bytes, cluster.rtt_s)
    delivery = Delivery(topology, terms, casts=casts, relays=relays)
    for reader, source in enumerate(sources):
        holder = SWITCH if source is None else source if source >= 0 else readers - source
        pieces = tuple(Piece(chunk, cluster.chunk_bytes, holder) for chunk in range(chunks))
        delivery.fetch(Work(reader, reader + 1, pieces), 0.0)
    total_s = now_s = 0.0
    while not delivery.idle:
        now_s = delivery.next_s()
        total_s += sum(done.at_s for done in delivery.advance(now_s))
    delivery.network.advance_to(now_s)
    return total_s / readers, delivery.network.carried[topology.up(0)]
