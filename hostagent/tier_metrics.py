"""Prometheus metrics of the agent's gate, its disk tier and its twins, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostagent.cold.tier import ColdTier
from hostagent.core.cold import ColdIndex, ColdWrites
from hostagent.core.core import AgentCore
from hostagent.core.disk_index import DiskState
from hostagent.core.events import ColdState
from hostagent.core.tiering import Tiering
from hostagent.core.twins import Twins
from hostagent.disk.store import DiskStore
from hostagent.pool.chunks import PoolUsage
from kvpolicy.tiers.gate import Choice, Gate
from kvpolicy.tiers.lane import Lane
from kvpolicy.value.costs import Tier

PREFIX = "kvcast_agent"


class WatchedPart(Collector):
    """A part that keeps its own counters: they are read at each scrape."""

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: the names of an agent's metrics cannot collide."""
        return iter(())


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


def size_metrics(name: str, usage: PoolUsage) -> Iterator[Metric]:
    """The size of a pool, and what its bytes hold: parts that add up to the size."""
    yield _gauge(f"{name}_size_bytes", "Size, as configured", usage.size_bytes)
    parts = GaugeMetricFamily(f"{PREFIX}_{name}_bytes", "What the bytes hold; adds up to the size", labels=["state"])
    for state, value in (
        ("free", usage.free_bytes),
        ("ready", usage.ready_bytes),
        ("filling", usage.filling_bytes),
    ):
        parts.add_metric([state], value)
    yield parts


def watched_tiers(core: AgentCore, store: DiskStore | None, cold: ColdTier | None) -> Iterator[WatchedPart]:
    """What says how an agent's tiers are: the gate, background work, twins, and the stores that there are."""
    yield WatchedGate(core.gate)
    yield _WatchedLanes(core.lanes)
    if core.twins is not None:
        yield _WatchedTwins(core.twins)
    if store is not None and core.tiering is not None:
        yield _WatchedDisk(store, core.tiering)
    if cold is not None and core.cold_writes is not None:
        yield _WatchedCold(cold, core.cold, core.cold_writes)


class WatchedGate(WatchedPart):
    """What the gate decides, and what that cost."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        counts = self._gate.counts
        decisions = CounterMetricFamily(
            f"{PREFIX}_gate_decisions", "Requests, by what the gate decided", labels=["choice"]
        )
        regrets = CounterMetricFamily(
            f"{PREFIX}_gate_regret_seconds", "What decisions cost beyond the other choice", labels=["choice"]
        )
        for choice in Choice:
            decisions.add_metric([choice.value], counts.decisions[choice])
            regrets.add_metric([choice.value], counts.regret_s.get(choice, 0.0))
        yield decisions
        yield regrets
        yield _counter("gate_saved_seconds", "What engines would have waited longer, recomputing", counts.saved_s)
        rates = GaugeMetricFamily(f"{PREFIX}_gate_rate_bytes_per_second", "Learned rates", labels=["source"])
        overheads = GaugeMetricFamily(f"{PREFIX}_gate_overhead_seconds", "Learned overheads", labels=["source"])
        for source in (Tier.REMOTE_DRAM, Tier.SWITCH, Tier.LOCAL_DISK, Tier.REMOTE_DISK, Tier.COLD):
            cost = self._gate.costs.cost(source)
            rates.add_metric([source.value], cost.rate_bytes_per_s)
            overheads.add_metric([source.value], cost.overhead_s)
        yield rates
        yield overheads
        yield _counter("gate_given_up", "Fetches that fell behind: what was here was used", counts.given_up)
        yield _counter("gate_probes", "Chunks of refused sources fetched to measure them", counts.probes)


class _WatchedDisk(WatchedPart):
    """The disk tier, and the traffic to and from it."""

    def __init__(self, disk: DiskStore, tiering: Tiering) -> None:
        self._disk = disk
        self._tiering = tiering

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        disk, counters = self._disk, self._disk.counters
        states = GaugeMetricFamily(f"{PREFIX}_disk_state", "1 for the state of the disk tier", labels=["state"])
        for state in DiskState:
            states.add_metric([state.value], float(disk.state is state))
        yield states
        yield from size_metrics("disk", disk.pool.usage())
        yield _gauge("disk_chunks", "Chunks that can be loaded", len(disk.stored_chunks()))
        yield _gauge("disk_unsaved_chunks", "Chunks in the pool that a crash would lose", self._tiering.unsaved_count)
        yield _gauge("disk_restored_chunks", "Chunks found at start", counters.restored_chunks)
        yield _counter("disk_written_bytes", "Chunks copied to disk", counters.written_bytes)
        yield _counter("disk_stored_bytes", "What the written chunks took on disk", counters.stored_bytes)
        yield _counter("disk_read_bytes", "Chunks loaded from disk, right ones", counters.read_bytes)
        yield _counter("disk_evictions", "Chunks that left the disk for others", disk.pool.evicted_count)
        yield _counter("disk_refused", "Chunks that the disk would not take", self._tiering.refused_count)
        damaged = CounterMetricFamily(f"{PREFIX}_disk_damaged", "What failed its checksum", labels=["what"])
        damaged.add_metric(["record"], counters.damaged_records)
        damaged.add_metric(["chunk"], counters.damaged_chunks)
        yield damaged
        failed = CounterMetricFamily(f"{PREFIX}_disk_failed", "Reads and writes that failed", labels=["direction"])
        failed.add_metric(["read"], counters.reads_failed)
        failed.add_metric(["write"], counters.writes_failed)
        yield failed


class _WatchedCold(WatchedPart):
    """The store, what this node knows of it, and the traffic to and from it."""

    def __init__(self, tier: ColdTier, index: ColdIndex, writes: ColdWrites) -> None:
        self._tier = tier
        self._index = index
        self._writes = writes

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        tier, index = self._tier, self._index
        states = GaugeMetricFamily(f"{PREFIX}_cold_state", "1 for the state of the cold store", labels=["state"])
        for state in ColdState:
            states.add_metric([state.value], float(tier.state is state))
        yield states
        yield _gauge("cold_known_chunks", "Chunks that this node knows to be there", index.known_count)
        for name, text, value in self._counts():
            yield _counter(f"cold_{name}", text, value)
        failed = CounterMetricFamily(f"{PREFIX}_cold_failed", "Operations that failed", labels=["direction"])
        failed.add_metric(["read"], tier.counters.reads_failed)
        failed.add_metric(["write"], tier.counters.writes_failed)
        yield failed

    def _counts(self) -> Iterator[tuple[str, str, float]]:
        counters, looks, writes = self._tier.counters, self._index.counts, self._writes.counts
        yield "outages", "Times that the store went away", counters.outages
        yield "written_bytes", "Chunks written behind", counters.written_bytes
        yield "stored_bytes", "What the written chunks took in the store", counters.stored_bytes
        yield "read_bytes", "Chunks loaded, right ones", counters.read_bytes
        yield "written_chunks", "Chunks written behind", writes.stored
        yield "dropped", "Chunks worth storing that left before their turn came", writes.dropped
        yield "lookups", "Chunks that were looked for", looks.looked_up
        yield "lookups_found", "Of these, found", looks.found
        yield "lookup_waits", "Requests that waited for a look", looks.waits
        yield "lookup_waits_late", "Of these, what went on without an answer", looks.waits_late
        yield "missing", "Chunks that were there once and were not any more", looks.missing
        yield "damaged", "What was there and was not the chunk: a miss", looks.damaged


class _WatchedTwins(WatchedPart):
    """Chunks that cross the network in fewer bytes."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        twins, making = self._twins, self._twins.making
        yield _gauge("twin_bytes", "Of the pool, what twins take", twins.here.size_bytes)
        yield _counter("twins_made", "Chunks that were encoded for other nodes", making.made_count)
        yield _counter("twin_made_bytes", "What they took", making.made_bytes)
        yield _counter("twins_decoded", "Chunks that came by their twins", twins.decoded_count)
        yield _counter("twin_saved_bytes", "What these had more than their twins", twins.saved_bytes)
        yield _counter("twins_wrong", "Twins that did not give their chunk", twins.wrong_count)


class _WatchedLanes(WatchedPart):
    """Background work."""

    def __init__(self, lanes: Mapping[str, Lane[Any]]) -> None:
        self._lanes = lanes

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        waiting = GaugeMetricFamily(f"{PREFIX}_background_waiting", "Background work that waits", labels=["lane"])
        taken = CounterMetricFamily(f"{PREFIX}_background_started", "Background work begun", labels=["lane"])
        forced = CounterMetricFamily(
            f"{PREFIX}_background_forced", "Begun although an engine waited, after long patience", labels=["lane"]
        )
        waited = CounterMetricFamily(f"{PREFIX}_background_waited_seconds", "From offer to start", labels=["lane"])
        for name, lane in self._lanes.items():
            waiting.add_metric([name], len(lane))
            taken.add_metric([name], lane.counts.taken)
            forced.add_metric([name], lane.counts.forced)
            waited.add_metric([name], lane.counts.waited_ns / 1e9)
        yield from (waiting, taken, forced, waited)
