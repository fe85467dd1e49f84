"""Prometheus metrics of the agent's gate, its disk tier and its twins, read at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
Row = tuple[str, str, float]
"""Name, help, value."""
Values = Iterable[tuple[str, float]]
"""By the value of a label."""


class Watched(Collector):
    """Figures of a part that keeps its own counters: a function reads them at each scrape."""

    def __init__(self, figures: Callable[[], Iterable[Metric]]) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: the names of an agent's metrics cannot collide."""
        return iter(())

    def collect(self) -> Iterable[Metric]:
        """Figures of this moment."""
        return self._figures()


def gauges(*rows: Row) -> Iterator[Metric]:
    """What goes up and down."""
    for name, text, value in rows:
        yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def counters(*rows: Row) -> Iterator[Metric]:
    """What only goes up."""
    for name, text, value in rows:
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


def labelled_gauge(name: str, text: str, label: str, values: Values) -> Metric:
    """One gauge for each value of a label."""
    made = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for of_label, value in values:
        made.add_metric([of_label], value)
    return made


def labelled_counter(name: str, text: str, label: str, values: Values) -> Metric:
    """One counter for each value of a label."""
    made = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for of_label, value in values:
        made.add_metric([of_label], value)
    return made


def size_metrics(name: str, usage: PoolUsage) -> Iterator[Metric]:
    """The size of a pool, and what its bytes hold: parts that add up to the size."""
    yield from gauges((f"{name}_size_bytes", "Size, as configured", usage.size_bytes))
    parts = (("free", usage.free_bytes), ("ready", usage.ready_bytes), ("filling", usage.filling_bytes))
    yield labelled_gauge(f"{name}_bytes", "What the bytes hold; adds up to the size", "state", parts)


def tier_figures(core: AgentCore, store: DiskStore | None, cold: ColdTier | None) -> Iterator[Metric]:
    """How an agent's tiers are: the gate, background work, twins, and the stores that there are."""
    yield from gate_figures(core.gate)
    yield from _lane_figures(core.lanes)
    if core.twins is not None:
        yield from _twin_figures(core.twins)
    if store is not None and core.tiering is not None:
        yield from _disk_figures(store, core.tiering)
    if cold is not None and core.cold_writes is not None:
        yield from _cold_figures(cold, core.cold, core.cold_writes)


def gate_figures(gate: Gate) -> Iterator[Metric]:
    """What the gate decides, and what that cost."""
    counts = gate.counts
    decisions = [(choice.value, counts.decisions[choice]) for choice in Choice]
    regrets = [(choice.value, counts.regret_s.get(choice, 0.0)) for choice in Choice]
    yield labelled_counter("gate_decisions", "Requests, by what the gate decided", "choice", decisions)
    yield labelled_counter("gate_regret_seconds", "What decisions cost beyond the other choice", "choice", regrets)
    sources = (Tier.REMOTE_DRAM, Tier.SWITCH, Tier.LOCAL_DISK, Tier.REMOTE_DISK, Tier.COLD)
    costs = [(source.value, gate.costs.cost(source)) for source in sources]
    rates = [(name, cost.rate_bytes_per_s) for name, cost in costs]
    overheads = [(name, cost.overhead_s) for name, cost in costs]
    yield labelled_gauge("gate_rate_bytes_per_second", "Learned rates", "source", rates)
    yield labelled_gauge("gate_overhead_seconds", "Learned overheads", "source", overheads)
    yield from counters(
        ("gate_saved_seconds", "What engines would have waited longer, recomputing", counts.saved_s),
        ("gate_given_up", "Fetches that fell behind: what was here was used", counts.given_up),
        ("gate_probes", "Chunks of refused sources fetched to measure them", counts.probes),
    )


def _disk_figures(disk: DiskStore, tiering: Tiering) -> Iterator[Metric]:
    """The disk tier, and the traffic to and from it."""
    counts = disk.counters
    states = [(state.value, float(disk.state is state)) for state in DiskState]
    yield labelled_gauge("disk_state", "1 for the state of the disk tier", "state", states)
    yield from size_metrics("disk", disk.pool.usage())
    yield from gauges(
        ("disk_chunks", "Chunks that can be loaded", len(disk.stored_chunks())),
        ("disk_unsaved_chunks", "Chunks in the pool that a crash would lose", tiering.unsaved_count),
        ("disk_restored_chunks", "Chunks found at start", counts.restored_chunks),
    )
    yield from counters(
        ("disk_written_bytes", "Chunks copied to disk", counts.written_bytes),
        ("disk_stored_bytes", "What the written chunks took on disk", counts.stored_bytes),
        ("disk_read_bytes", "Chunks loaded from disk, right ones", counts.read_bytes),
        ("disk_evictions", "Chunks that left the disk for others", disk.pool.evicted_count),
        ("disk_refused", "Chunks that the disk would not take", tiering.refused_count),
    )
    damaged = (("record", counts.damaged_records), ("chunk", counts.damaged_chunks))
    failed = (("read", counts.reads_failed), ("write", counts.writes_failed))
    yield labelled_counter("disk_damaged", "What failed its checksum", "what", damaged)
    yield labelled_counter("disk_failed", "Reads and writes that failed", "direction", failed)


def _cold_figures(tier: ColdTier, index: ColdIndex, writes: ColdWrites) -> Iterator[Metric]:
    """The store, what this node knows of it, and the traffic to and from it."""
    counts, looks = tier.counters, index.counts
    states = [(state.value, float(tier.state is state)) for state in ColdState]
    yield labelled_gauge("cold_state", "1 for the state of the cold store", "state", states)
    yield from gauges(("cold_known_chunks", "Chunks that this node knows to be there", index.known_count))
    yield from counters(
        ("cold_outages", "Times that the store went away", counts.outages),
        ("cold_written_bytes", "Chunks written behind", counts.written_bytes),
        ("cold_stored_bytes", "What the written chunks took in the store", counts.stored_bytes),
        ("cold_read_bytes", "Chunks loaded, right ones", counts.read_bytes),
        ("cold_written_chunks", "Chunks written behind", writes.counts.stored),
        ("cold_dropped", "Chunks worth storing that left before their turn came", writes.counts.dropped),
        ("cold_lookups", "Chunks that were looked for", looks.looked_up),
        ("cold_lookups_found", "Of these, found", looks.found),
        ("cold_lookup_waits", "Requests that waited for a look", looks.waits),
        ("cold_lookup_waits_late", "Of these, what went on without an answer", looks.waits_late),
        ("cold_missing", "Chunks that were there once and were not any more", looks.missing),
        ("cold_damaged", "What was there and was not the chunk: a miss", looks.damaged),
    )
    failed = (("read", counts.reads_failed), ("write", counts.writes_failed), ("delete", counts.deletes_failed))
    yield labelled_counter("cold_failed", "Operations that failed", "direction", failed)


def _twin_figures(twins: Twins) -> Iterator[Metric]:
    """Chunks that cross the network in fewer bytes."""
    yield from gauges(("twin_bytes", "Of the pool, what twins take", twins.here.size_bytes))
    yield from counters(
        ("twins_made", "Chunks that were encoded for other nodes", twins.making.made_count),
        ("twin_made_bytes", "What they took", twins.making.made_bytes),
        ("twins_decoded", "Chunks that came by their twins", twins.decoded_count),
        ("twin_saved_bytes", "What these had more than their twins", twins.saved_bytes),
        ("twins_wrong", "Twins that did not give their chunk", twins.wrong_count),
    )


def _lane_figures(lanes: Mapping[str, Lane[Any]]) -> Iterator[Metric]:
    """Background work."""
    waiting = [(name, len(lane)) for name, lane in lanes.items()]
    taken = [(name, lane.counts.taken) for name, lane in lanes.items()]
    forced = [(name, lane.counts.forced) for name, lane in lanes.items()]
    waited = [(name, lane.counts.waited_ns / 1e9) for name, lane in lanes.items()]
    yield labelled_gauge("background_waiting", "Background work that waits", "lane", waiting)
    yield labelled_counter("background_started", "Background work begun", "lane", taken)
    yield labelled_counter("background_forced", "Begun although an engine waited, after long patience", "lane", forced)
    yield labelled_counter("background_waited_seconds", "From offer to start", "lane", waited)
