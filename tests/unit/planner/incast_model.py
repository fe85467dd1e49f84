"""The incast benchmark (`kvcast bench incast`) as the network model of the planner predicts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.network.delivery import Delivery, Piece, Work
from planner.network.fluid import FluidNetwork, Transfer
from planner.network.terms import WireTerms
from planner.network.topology import SWITCH, Topology

_HOLDER = 0
_COMPARE_BYTES_PER_S = 4e9
"""Of one core, for two buffers of which neither is in its cache."""


@dataclass(frozen=True, slots=True)
class Incast:
    """Readers 0 .. n-1 fetch `chunks` x `chunk_bytes` from one holder; rates in bytes per second."""

    offsets_s: Sequence[float]
    """Each reader's start."""
    chunks: int
    chunk_bytes: int
    link_rate: float
    mode: str
    """unicast, cast or cache, as the benchmark calls them."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Rates of readers whose link differs."""
    loss: float = 0.0
    cores: int = 0
    """Of the machine that all readers share; there they compare every byte at the end. 0: they do not."""

    @property
    def ideal_s(self) -> float:
        return self.chunks * self.chunk_bytes / self.link_rate


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times from each reader's own start; bytes over the prefix' size S."""

    times_s: tuple[float, ...]
    ratios: tuple[float, ...]
    """Times over S/B."""
    holder_tx: float
    readers_tx: float
    readers_rx: float


def incast_of(figures: Mapping[str, Any], mode: str) -> Incast:
    """The case that a JSON file of the benchmark describes."""
    return Incast(
        offsets_s=tuple(figures["modes"][mode]["offsets_s"]),
        chunks=figures["size_bytes"] // figures["chunk_bytes"],
        chunk_bytes=figures["chunk_bytes"],
        link_rate=figures["rate_bit_s"] / 8,
        mode=mode,
        slow={int(reader): rate / 8 for reader, rate in figures["slow"].items()},
        loss=figures["loss"],
        cores=figures["machine"]["cores"],
    )


def predict(incast: Incast, terms: WireTerms | None = None) -> Prediction:
    """Run the model. Host 0 holds; reader i is node i + 1."""
    terms = terms or WireTerms(loss=incast.loss)
    readers = len(incast.offsets_s)
    topology = Topology(readers + 1, incast.link_rate, {node + 1: rate for node, rate in incast.slow.items()})
    delivery = Delivery(topology, terms, casts=incast.mode != "unicast")
    holder = SWITCH if incast.mode == "cache" else _HOLDER
    pieces = tuple(Piece(index, incast.chunk_bytes, holder) for index in range(incast.chunks))
    starts = sorted((start_s, reader) for reader, start_s in enumerate(incast.offsets_s))
    times = [0.0] * readers
    while starts or not delivery.idle:
        now_s = min(delivery.next_s(), starts[0][0] if starts else float("inf"))
        for done in delivery.advance(now_s):
            times[done.work.id] = done.at_s - incast.offsets_s[done.work.id]
        while starts and starts[0][0] <= now_s:
            _, reader = starts.pop(0)
            delivery.fetch(Work(reader, reader + 1, pieces), now_s)
    size = incast.chunks * incast.chunk_bytes
    if incast.cores:
        ends = [offset_s + time_s for offset_s, time_s in zip(incast.offsets_s, times, strict=True)]
        compared = _compared(ends, size, incast.cores)
        times = [end_s - offset_s for offset_s, end_s in zip(incast.offsets_s, compared, strict=True)]
    delivery.network.advance_to(now_s)
    carried, control = delivery.network.carried, delivery.control_bytes
    return Prediction(
        tuple(times),
        tuple(time_s / incast.ideal_s for time_s in times),
        carried[topology.up(_HOLDER)] / size,
        (sum(control[1:]) + sum(carried[topology.up(node)] for node in range(1, readers + 1))) / size,
        sum(carried[topology.down(node)] for node in range(1, readers + 1)) / size,
    )


def _compared(ends_s: Sequence[float], size_bytes: int, cores: int) -> list[float]:
    """When each reader that has everything at `ends_s` has compared it, all of them on a few shared cores."""
    readers = len(ends_s)
    machine = FluidNetwork([*[_COMPARE_BYTES_PER_S] * readers, cores * _COMPARE_BYTES_PER_S])
    waiting = sorted((end_s, reader) for reader, end_s in enumerate(ends_s))
    owners: dict[Transfer, int] = {}
    found = [0.0] * readers
    while waiting or owners:
        now_s = min(machine.next_end_s(), waiting[0][0] if waiting else float("inf"))
        for done in machine.advance(now_s):
            machine.end(done, now_s)
            found[owners.pop(done)] = now_s
        while waiting and waiting[0][0] <= now_s:
            _, reader = waiting.pop(0)
            owners[machine.start((readers,), {reader: (reader,)}, size_bytes, now_s)] = reader
    return found
