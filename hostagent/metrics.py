"""What the agent tells Prometheus. Counters that others keep anyway are read when somebody asks, not counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostagent.api.messages import ChunkSource, Status
from hostagent.pool.chunks import ChunkPool
from hostagent.transport.base import TransportCounters
from kvproto.session.holder import HolderCounts

PREFIX = "kvcast_agent"
FETCH_SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class AgentMetrics:
    """One registry an agent; nothing global, so that several agents can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        make = self.registry
        self.fetched_chunks = Counter(
            f"{PREFIX}_fetch_chunks", "Chunks delivered to engines, by where they came from", ["source"], registry=make
        )
        self.fetched_bytes = Counter(
            f"{PREFIX}_fetch_bytes", "Bytes of chunks delivered to engines", ["source"], registry=make
        )
        self.fetches = Counter(f"{PREFIX}_fetches", "Fetches, by how they ended", ["outcome"], registry=make)
        self.fetch_seconds = Histogram(
            f"{PREFIX}_fetch_seconds", "Duration of fetches", buckets=FETCH_SECONDS_BUCKETS, registry=make
        )
        self.puts = Counter(f"{PREFIX}_puts", "Reservations for chunks, by outcome", ["outcome"], registry=make)
        self.checksum_failures = Counter(
            f"{PREFIX}_checksum_failures", "Chunks that arrived with a wrong checksum", registry=make
        )
        self.internal_errors = Counter(
            f"{PREFIX}_internal_errors", "Exceptions that nothing expected: bugs, see the log", registry=make
        )
        # Looking a label up costs as much as all the rest of delivering a chunk that is here.
        self._delivered = {
            source: (self.fetched_chunks.labels(source.name.lower()), self.fetched_bytes.labels(source.name.lower()))
            for source in ChunkSource
        }
        for outcome in (Status.OK, Status.NOT_FOUND, Status.DEADLINE, Status.GATE, Status.UNAVAILABLE):
            self.fetches.labels(outcome.name.lower())

    def delivered(self, source: ChunkSource, size_bytes: int) -> None:
        """Count a chunk that an engine got."""
        chunks, size = self._delivered[source]
        chunks.inc()
        size.inc(size_bytes)

    def watch(self, others: Watched) -> None:
        """Also report what others count by themselves."""
        self.registry.register(_WatchedCollector(others))


@dataclass(frozen=True, slots=True)
class Watched:
    """What counts by itself and is read when somebody asks."""

    pool: ChunkPool
    transport: TransportCounters
    controller_connected: Callable[[], bool]
    led_count: Callable[[], int]
    holder: Callable[[], HolderCounts]


class _WatchedCollector(Collector):
    def __init__(self, others: Watched) -> None:
        self._others = others

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: the names below cannot collide."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        yield from self._pool_metrics()
        yield from self._transport_metrics()
        yield from self._holder_metrics()
        connected = GaugeMetricFamily(f"{PREFIX}_controller_connected", "1 while the controller's stream is open")
        connected.add_metric([], float(self._others.controller_connected()))
        yield connected
        yield GaugeMetricFamily(
            f"{PREFIX}_led_chunks", "Chunks that this node pulls for every reader now", value=self._others.led_count()
        )

    def _pool_metrics(self) -> Iterator[Metric]:
        usage = self._others.pool.usage()
        size = GaugeMetricFamily(f"{PREFIX}_pool_bytes", "Bytes of the pool by state", labels=["state"])
        for state, value in (
            ("size", usage.size_bytes),
            ("free", usage.free_bytes),
            ("ready", usage.ready_bytes),
            ("filling", usage.filling_bytes),
            ("pinned", usage.pinned_bytes),
        ):
            size.add_metric([state], value)
        yield size
        yield GaugeMetricFamily(f"{PREFIX}_pool_chunks", "Chunks in the pool", value=usage.chunks_count)
        yield GaugeMetricFamily(
            f"{PREFIX}_pool_pins", "Pins on chunks: leases, sends, reads", value=self._others.pool.pins_count
        )
        yield CounterMetricFamily(
            f"{PREFIX}_pool_evictions", "Chunks evicted to make room", value=self._others.pool.evicted_count
        )

    def _holder_metrics(self) -> Iterator[Metric]:
        counts = self._others.holder()
        segments = CounterMetricFamily(
            f"{PREFIX}_get_segments", "Segments that GETs asked this node for", labels=["outcome"]
        )
        segments.add_metric(["queued"], counts.segments_queued)
        segments.add_metric(["answered_already"], counts.answered_already)
        segments.add_metric(["queue_full"], counts.segments_refused)
        yield segments
        yield CounterMetricFamily(f"{PREFIX}_naks", "Requests for chunks that are not here", value=counts.naks)

    def _transport_metrics(self) -> Iterator[Metric]:
        counters = self._others.transport
        casts = CounterMetricFamily(f"{PREFIX}_cast_packets", "Cast segments", labels=["direction"])
        casts.add_metric(["received"], counters.cast_packets_received)
        casts.add_metric(["received_from_switch"], counters.cast_packets_from_switch)
        casts.add_metric(["sent"], counters.cast_packets_sent)
        casts.add_metric(["filled"], counters.fill_packets_sent)
        yield casts
        yield CounterMetricFamily(
            f"{PREFIX}_cast_batches",
            "Times that casts were taken in, many at a time",
            value=counters.cast_batches_received,
        )
        control = CounterMetricFamily(f"{PREFIX}_control_datagrams", "Control datagrams", labels=["direction"])
        control.add_metric(["received"], counters.control_received)
        control.add_metric(["sent"], counters.control_sent)
        yield control
        reads = CounterMetricFamily(f"{PREFIX}_read_bytes", "Bytes of reliable reads", labels=["direction"])
        reads.add_metric(["received"], counters.read_bytes_received)
        reads.add_metric(["sent"], counters.read_bytes_sent)
        yield reads
        yield CounterMetricFamily(
            f"{PREFIX}_rdma_read_bytes", "Bytes of reliable reads received by RDMA", value=counters.read_bytes_rdma
        )
        yield CounterMetricFamily(
            f"{PREFIX}_rdma_retransmissions",
            "Retransmissions that the NIC counted while reads were in flight",
            value=counters.read_retransmissions,
        )
        yield CounterMetricFamily(
            f"{PREFIX}_reads_failed", "Reliable reads that did not end well", value=counters.reads_failed
        )
        yield CounterMetricFamily(
            f"{PREFIX}_cast_overflows",
            "Cast segments that the kernel dropped because the receive buffer was full",
            value=counters.cast_receive_overflows,
        )
        dropped = CounterMetricFamily(
            f"{PREFIX}_dropped", "Datagrams and requests refused, by reason", labels=["reason"]
        )
        for reason, count in sorted(counters.dropped.items()):
            dropped.add_metric([reason], count)
        yield dropped
