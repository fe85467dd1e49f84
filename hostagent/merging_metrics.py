"""Prometheus metrics of what is being computed and of those who wait for it, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostagent.core.claims import Claims, Freed
from hostagent.core.waits import Waits
from hostagent.tier_metrics import PREFIX


class WatchedMerging(Collector):
    """One node's claims and waits."""

    def __init__(self, claims: Claims, waits: Waits) -> None:
        self._claims = claims
        self._waits = waits

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        claims, waits = self._claims.counts, self._waits.counts
        for name, text, gauge in (
            ("claims", "Chunks that engines compute at this moment, here or elsewhere", self._claims.claims_count),
            ("waiting_fetches", "Fetches that wait for something to be computed", self._waits.waiting_count),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=gauge)
        for name, text, value in (
            ("claims_made", "Chunks that engines of this node claimed", claims.made),
            ("claims_kept", "Of these, chunks that were put", claims.kept),
            ("claims_refused", "Claims beyond what an engine may have", claims.refused),
            ("waits", "Fetches that waited for something to be computed", waits.begun),
            ("wait_chunks", "Chunks that came to fetches that had waited for them", waits.chunks),
            ("wait_seconds", "Time that these fetches took", waits.waited_s),
            ("wait_saved_seconds", "What their engines would have taken longer, computing", waits.saved_s),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)
        ended = CounterMetricFamily(
            f"{PREFIX}_claims_ended", "Claims of this node that were not kept, by why", labels=["reason"]
        )
        freed = CounterMetricFamily(
            f"{PREFIX}_waits_freed", "Fetches that did not get all that they waited for, by why", labels=["reason"]
        )
        for why in Freed:
            ended.add_metric([why.value], claims.ended[why])
            freed.add_metric([why.value], waits.freed[why])
        yield ended
        yield freed
