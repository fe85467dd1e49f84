"""Prometheus metrics of the cold store, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostagent.cold.tier import ColdTier
from hostagent.core.cold import ColdIndex, ColdWrites
from hostagent.core.events import ColdState
from hostagent.tier_metrics import PREFIX


class WatchedCold(Collector):
    """The store, what this node knows of it, and the traffic to and from it."""

    def __init__(self, tier: ColdTier, index: ColdIndex, writes: ColdWrites) -> None:
        self._tier = tier
        self._index = index
        self._writes = writes

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        tier, index = self._tier, self._index
        states = GaugeMetricFamily(f"{PREFIX}_cold_state", "1 for the state of the cold store", labels=["state"])
        for state in ColdState:
            states.add_metric([state.value], float(tier.state is state))
        yield states
        yield GaugeMetricFamily(
            f"{PREFIX}_cold_known_chunks", "Chunks that this node knows to be there", value=index.known_count
        )
        for name, text, value in self._counts():
            yield CounterMetricFamily(f"{PREFIX}_cold_{name}", text, value=value)
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
