"""The agent's Prometheus metrics. Counters that other parts keep anyway are read at each scrape, not counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hostagent.api.tenancy import Tenancy
from hostagent.cold.tier import ColdTier
from hostagent.core.claims import Claims, Freed
from hostagent.core.core import AgentCore
from hostagent.core.effects import FetchEnded
from hostagent.core.waits import Waits
from hostagent.disk.store import DiskStore
from hostagent.pool.tenants import Tenants
from hostagent.tier_metrics import PREFIX, WatchedPart, size_metrics, watched_tiers
from hostagent.transport.base import TransportCounters
from kvchunk.sources import ChunkSource
from kvclient.messages import Status

FETCH_SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class AgentMetrics:
    """One registry per agent; nothing global, so that several agents can live in one process."""

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
            f"{PREFIX}_fetch_duration_seconds",
            "From a request to its answer",
            buckets=FETCH_SECONDS_BUCKETS,
            registry=make,
        )
        self.puts = Counter(f"{PREFIX}_puts", "Reservations for chunks, by outcome", ["outcome"], registry=make)
        self.checksum_failures = Counter(
            f"{PREFIX}_checksum_failures", "Chunks that arrived with a wrong checksum", registry=make
        )
        self.internal_errors = Counter(
            f"{PREFIX}_internal_errors", "Exceptions that nothing expected: bugs, see the log", registry=make
        )
        self.api_refusals = Counter(
            f"{PREFIX}_api_refusals", "Connections to the local API that were refused", ["reason"], registry=make
        )
        for reason in (Status.BUSY, Status.FORBIDDEN):
            self.api_refusals.labels(reason.name.lower())
        # Looking up a label costs as much as everything else in delivering a chunk that is here.
        self._delivered = {
            source: (self.fetched_chunks.labels(source.label), self.fetched_bytes.labels(source.label))
            for source in ChunkSource
        }
        for outcome in (
            Status.OK,
            Status.NOT_FOUND,
            Status.DEADLINE,
            Status.GATE,
            Status.UNAVAILABLE,
            Status.ABANDONED,
        ):
            self.fetches.labels(outcome.name.lower())

    def fetch_ended(self, ended: FetchEnded) -> None:
        """Count a fetch and what it brought."""
        for source, size_bytes in ended.delivered:
            chunks, size = self._delivered[source]
            chunks.inc()
            size.inc(size_bytes)
        self.fetches.labels(ended.status.name.lower()).inc()
        self.fetch_seconds.observe(ended.seconds)

    def api_refused(self, reason: Status) -> None:
        """A process wanted to connect to the local API and may not."""
        self.api_refusals.labels(reason.name.lower()).inc()

    def watch(
        self,
        core: AgentCore,
        transport: TransportCounters,
        store: DiskStore | None,
        cold: ColdTier | None,
        tenancy: Tenancy,
    ) -> None:
        """Also report what others count by themselves."""
        self.registry.register(_WatchedNode(core, transport))
        self.registry.register(_WatchedMerging(core.claims, core.waits))
        self.registry.register(_WatchedTenants(core.pool.tenants, tenancy))
        for part in watched_tiers(core, store, cold):
            self.registry.register(part)

    def watch_certificate(self, ends_s: Callable[[], float]) -> None:
        """`ends_s()`: when the agent's certificate expires, in seconds since 1970."""
        expires = Gauge(
            f"{PREFIX}_certificate_expires_timestamp_seconds",
            "When this agent's certificate expires",
            registry=self.registry,
        )
        expires.set_function(ends_s)

    def flat(self) -> dict[str, float]:
        """Every figure of this moment, by name and labels."""
        figures: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.endswith(("_created", "_bucket")):
                    continue
                labels = ",".join(sample.labels.values())
                name = sample.name.removeprefix(f"{PREFIX}_")
                figures[f"{name}{{{labels}}}" if labels else name] = sample.value
        return figures


class _WatchedNode(WatchedPart):
    """The pool, the transport, and what peers are served."""

    def __init__(self, core: AgentCore, transport: TransportCounters) -> None:
        self._core = core
        self._transport = transport

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        yield from self._pool_metrics()
        yield from self._transport_metrics()
        yield from self._holder_metrics()
        connected = GaugeMetricFamily(f"{PREFIX}_controller_connected", "1 while the controller's stream is open")
        connected.add_metric([], float(self._core.connected))
        yield connected
        led_count = self._core.fetches.arrivals.led_count
        yield GaugeMetricFamily(
            f"{PREFIX}_led_chunks", "Chunks that this node pulls for every reader now", value=led_count
        )

    def _pool_metrics(self) -> Iterator[Metric]:
        usage = self._core.pool.usage()
        yield from size_metrics("pool", usage)
        yield GaugeMetricFamily(
            f"{PREFIX}_pool_pinned_bytes", "Of chunks in use or kept: what may not be evicted", value=usage.pinned_bytes
        )
        yield GaugeMetricFamily(f"{PREFIX}_pool_chunks", "Chunks in the pool", value=usage.chunks_count)
        yield GaugeMetricFamily(
            f"{PREFIX}_pool_pins", "Pins on chunks: leases, sends, reads", value=self._core.pool.pins_count
        )
        yield CounterMetricFamily(
            f"{PREFIX}_pool_evictions", "Chunks evicted to make room", value=self._core.pool.evicted_count
        )

    def _holder_metrics(self) -> Iterator[Metric]:
        counts = self._core.holder_counts
        segments = CounterMetricFamily(
            f"{PREFIX}_get_segments", "Segments that GETs asked this node for", labels=["outcome"]
        )
        segments.add_metric(["queued"], counts.segments_queued)
        segments.add_metric(["answered_already"], counts.answered_already)
        segments.add_metric(["queue_full"], counts.segments_refused)
        yield segments
        yield CounterMetricFamily(f"{PREFIX}_naks", "Requests for chunks that are not here", value=counts.naks)

    def _transport_metrics(self) -> Iterator[Metric]:
        counters = self._transport
        received = CounterMetricFamily(
            f"{PREFIX}_cast_received_segments", "Segments received by cast, by who sent them", labels=["source"]
        )
        received.add_metric(["switch"], counters.cast_packets_from_switch)
        received.add_metric(["holder"], counters.cast_packets_received - counters.cast_packets_from_switch)
        yield received
        sent = CounterMetricFamily(
            f"{PREFIX}_cast_sent_segments", "Segments cast to readers, or sent to fill the switch", labels=["target"]
        )
        sent.add_metric(["readers"], counters.cast_packets_sent)
        sent.add_metric(["switch"], counters.fill_packets_sent)
        sent.add_metric(["both"], counters.fill_packets_cast)
        yield sent
        yield CounterMetricFamily(
            f"{PREFIX}_fill_packets_failed",
            "Segments for the switch's memory that the network did not take",
            value=counters.fill_packets_failed,
        )
        yield CounterMetricFamily(
            f"{PREFIX}_cast_batches",
            "Times that casts were taken in, many at a time",
            value=counters.cast_batches_received,
        )
        control = CounterMetricFamily(f"{PREFIX}_control_datagrams", "Control datagrams", labels=["direction"])
        control.add_metric(["received"], counters.control_received)
        control.add_metric(["sent"], counters.control_sent)
        yield control
        reads = CounterMetricFamily(
            f"{PREFIX}_read_received_bytes", "Bytes received by reliable reads", labels=["transport"]
        )
        reads.add_metric(["rdma"], counters.read_bytes_rdma)
        reads.add_metric(["tcp"], counters.read_bytes_received - counters.read_bytes_rdma)
        yield reads
        yield CounterMetricFamily(
            f"{PREFIX}_read_sent_bytes",
            "Bytes sent for peers' reads over TCP; what they read by RDMA no holder sees",
            value=counters.read_bytes_sent,
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


class _WatchedMerging(WatchedPart):
    """What is being computed, and those who wait for it."""

    def __init__(self, claims: Claims, waits: Waits) -> None:
        self._claims = claims
        self._waits = waits

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


class _WatchedTenants(WatchedPart):
    """Of all tenants that are configured, connected, or have chunks."""

    def __init__(self, tenants: Tenants, tenancy: Tenancy) -> None:
        self._tenants = tenants
        self._tenancy = tenancy

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        label = ["tenant"]
        used = GaugeMetricFamily(f"{PREFIX}_tenant_used_bytes", "Pool bytes of a tenant's chunks", labels=label)
        held = GaugeMetricFamily(f"{PREFIX}_tenant_held_bytes", "Of these, what cannot be evicted now", labels=label)
        share = GaugeMetricFamily(f"{PREFIX}_tenant_share_bytes", "A tenant's share of the pool", labels=label)
        engines = GaugeMetricFamily(f"{PREFIX}_tenant_connections", "Connections of a tenant's engines", labels=label)
        refused = CounterMetricFamily(
            f"{PREFIX}_tenant_refused", "Times that a tenant found no room, or held its share already", labels=label
        )
        delayed = CounterMetricFamily(
            f"{PREFIX}_tenant_delayed", "Times that requests waited for the tenant's pace", labels=label
        )
        for name in self._tenants.names:
            used.add_metric([name], self._tenants.used_bytes[name])
            held.add_metric([name], self._tenants.held_bytes[name])
            share.add_metric([name], self._tenants.share_bytes(name))
            engines.add_metric([name], self._tenants.engines_count(name))
            refused.add_metric([name], self._tenants.refused_count[name])
            delayed.add_metric([name], self._tenancy.delayed_count(name))
        yield from (used, held, share, engines, refused, delayed)
