"""kvcast's figures through vLLM's own statistics: logged with its throughput line, exported by its /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

SECONDS_BUCKETS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

SUMS = {
    "lookups": "Requests looked up in the pool",
    "hit_tokens": "Prompt tokens loaded from the pool",
    "loaded_bytes": "Bytes copied from the pool into the paged cache, all workers",
    "saved_bytes": "Bytes copied from the paged cache into the pool, all workers",
    "failed_blocks": "Blocks whose load failed and that the engine computed",
    "saves_dropped": "Chunks not saved because too many blocks waited to be saved",
    "claims": "Chunks claimed at the agent while they were computed",
    "outages": "Times the agent went away",
    "internal_errors": "Exceptions that nothing expected: bugs, see the log",
}
"""Counters without labels, by key in the statistics; the metric is vllm:kvcast_<key>."""
LABELLED = {
    "hits": ("source", "Chunks promised to requests, by source"),
    "misses": ("reason", "Requests for which nothing is loaded, by why"),
    "saves": ("outcome", "Chunks by what became of saving them"),
}
TIMES = {
    "load_seconds": "Duration of loads from local memory into the paged cache",
    "fetch_seconds": "Duration of fetches into this node's pool",
    "save_seconds": "Duration of saving a chunk",
}
GAUGES = {
    "agent_away": "1 while there is no agent",
    "prefill_tokens_per_second": "Measured rate of computing prompts, which fetches have to beat; 0: not known yet",
    "fetch_bytes_per_second": "The agent's measured rate of fetches; 0: not known yet",
}


@dataclass
class KvcastStats(KVConnectorStats):
    """`data` has sums, lists of seconds, dictionaries of sums by label, and gauges; a missing key is 0 or empty."""

    def reset(self) -> None:
        """Forget all."""
        self.data: dict[str, Any] = {}

    def add(self, key: str, amount: float = 1) -> None:
        """Add to a sum."""
        self.data[key] = self.data.get(key, 0) + amount

    def add_labelled(self, key: str, label: str, amount: float = 1) -> None:
        """Add to a sum by label."""
        sums = self.data.setdefault(key, {})
        sums[label] = sums.get(label, 0) + amount

    def observe(self, key: str, seconds: float) -> None:
        """One more duration."""
        self.data.setdefault(key, []).append(seconds)

    def aggregate(self, other: KVConnectorStats) -> KvcastStats:
        """Add another's figures; of gauges the other's are the newer."""
        for key, value in other.data.items():
            if key in GAUGES:
                self.data[key] = value
            elif isinstance(value, list):
                self.data.setdefault(key, []).extend(value)
            elif isinstance(value, dict):
                for label, amount in value.items():
                    self.add_labelled(key, label, amount)
            else:
                self.add(key, value)
        return self

    def reduce(self) -> dict[str, int | float]:
        """One figure per name, for vLLM's log line."""
        figures: dict[str, int | float] = {}
        for key, value in sorted(self.data.items()):
            if isinstance(value, list):
                figures[f"kvcast {key} mean"] = round(sum(value) / len(value), 6) if value else 0
            elif isinstance(value, dict):
                figures.update({f"kvcast {key} {label}": amount for label, amount in sorted(value.items())})
            else:
                figures[f"kvcast {key}"] = round(value, 3)
        return figures

    def is_empty(self) -> bool:
        """Whether there is nothing to report: gauges by themselves are reported when they change."""
        return not self.data


class KvcastPromMetrics(KVConnectorPromMetrics):
    """The same in Prometheus' terms."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._sums = {key: self._make(Counter, key, text) for key, text in SUMS.items()}
        self._labelled = {key: self._make(Counter, key, text, label) for key, (label, text) in LABELLED.items()}
        self._times = {key: self._make(Histogram, key, text) for key, text in TIMES.items()}
        self._gauges = {key: self._make(Gauge, key, text) for key, text in GAUGES.items()}

    def _make(self, kind: Any, key: str, text: str, label: str | None = None) -> Any:
        made = {Counter: self._counter_cls, Gauge: self._gauge_cls, Histogram: self._histogram_cls}[kind]
        labels = [*self._labelnames, *([label] if label else [])]
        more = {"buckets": SECONDS_BUCKETS} if kind is Histogram else {}
        return made(name=f"vllm:kvcast_{key}", documentation=text, labelnames=labels, **more)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take an interval's figures in."""
        engine = self.per_engine_labelvalues[engine_idx]
        for key, value in transfer_stats_data.items():
            if key in self._sums:
                self._sums[key].labels(*engine).inc(value)
            elif key in self._gauges:
                self._gauges[key].labels(*engine).set(value)
            elif key in self._times:
                for seconds in value:
                    self._times[key].labels(*engine).observe(seconds)
            elif key in self._labelled:
                for label, amount in value.items():
                    self._labelled[key].labels(*engine, label).inc(amount)
