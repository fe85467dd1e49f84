"""The agent's Prometheus metrics. Counters that other parts keep anyway are read at each scrape, not counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric

from hostagent.api.tenancy import Tenancy
from hostagent.cold.tier import ColdTier
from hostagent.core.claims import Claims, Freed
from hostagent.core.core import AgentCore
from hostagent.core.effects import FetchEnded
from hostagent.core.waits import Waits
from hostagent.disk.store import DiskStore
from hostagent.pool.tenants import Tenants
from hostagent.tier_metrics import (
    PREFIX,
    Watched,
    counters,
    gauges,
    labelled_counter,
    labelled_gauge,
    size_metrics,
    tier_figures,
)
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
        for source, count, size_bytes in ended.delivered:
            chunks, size = self._delivered[source]
            chunks.inc(count)
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
        for figures in (
            partial(_pool_figures, core),
            partial(_transport_figures, transport),
            partial(_merging_figures, core.claims, core.waits),
            partial(_tenant_figures, core.pool.tenants, tenancy),
            partial(tier_figures, core, store, cold),
        ):
            self.registry.register(Watched(figures))

    def watch_certificate(self, ends_s: Callable[[], float]) -> None:
        """`ends_s()`: when the agent's certificate expires, in seconds since 1970."""
        expires = Gauge(
            f"{PREFIX}_certificate_expires_timestamp_seconds",
            "When this agent's certificate expires",
            registry=self.registry,
        )
        expires.set_function(ends_s)

    def watch_refusals(self, by_controller: Mapping[str, int], of_controller: Mapping[str, int]) -> None:
        """What the controller did not take of this agent, and what this agent did not take of it, by what it is."""
        for name, text, refused in (
            ("refused_by_controller", "Of what this agent told the controller, what it did not take", by_controller),
            ("refused_of_controller", "Of what the controller told this agent, what it did not take", of_controller),
        ):
            self.registry.register(Watched(partial(_refused, name, text, refused)))

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


def _pool_figures(core: AgentCore) -> Iterator[Metric]:
    """The pool, and what peers are served from it."""
    usage = core.pool.usage()
    yield from size_metrics("pool", usage)
    yield from gauges(
        ("pool_pinned_bytes", "Of chunks in use or kept: what may not be evicted", usage.pinned_bytes),
        ("pool_chunks", "Chunks in the pool", usage.chunks_count),
        ("pool_pins", "Pins on chunks: leases, sends, reads", core.pool.pins_count),
        ("controller_connected", "1 while the controller's stream is open", float(core.connected)),
        ("peers_unreached", "Nodes that this one cannot reach on the data network", core.paths.unreached_count),
        ("led_chunks", "Chunks that this node pulls for every reader now", core.fetches.arrivals.reader.led_count),
    )
    yield from counters(
        ("pool_evictions", "Chunks evicted to make room", core.pool.evicted_count),
        (
            "look_ups_elsewhere",
            "Look-ups of prefixes that another cell is home to",
            core.fetches.look_ups.elsewhere_count,
        ),
    )
    counts = [serving.counts for serving in core.serving_by_rail]
    segments = (
        ("queued", sum(one.segments_queued for one in counts)),
        ("answered_already", sum(one.answered_already for one in counts)),
        ("queue_full", sum(one.segments_refused for one in counts)),
    )
    yield labelled_counter("get_segments", "Segments that GETs asked this node for", "outcome", segments)
    yield from counters(("naks", "Requests for chunks that are not here", sum(one.naks for one in counts)))


def _refused(name: str, text: str, refused: Mapping[str, int]) -> tuple[Metric, ...]:
    return (labelled_counter(name, text, "what", sorted(refused.items())),)


def _transport_figures(counts: TransportCounters) -> Iterator[Metric]:
    """What went over the network."""
    from_holders = counts.cast_packets_received - counts.cast_packets_from_switch
    received = (("switch", counts.cast_packets_from_switch), ("holder", from_holders))
    sent = (
        ("readers", counts.cast_packets_sent),
        ("switch", counts.fill_packets_sent),
        ("both", counts.fill_packets_cast),
    )
    control = (("received", counts.control_received), ("sent", counts.control_sent))
    reads = (("rdma", counts.read_bytes_rdma), ("tcp", counts.read_bytes_received - counts.read_bytes_rdma))
    for name, text, label, values in (
        ("cast_received_segments", "Segments received by cast, by who sent them", "source", received),
        ("cast_sent_segments", "Segments cast to readers, or sent to fill the switch", "target", sent),
        ("control_datagrams", "Control datagrams", "direction", control),
        ("read_received_bytes", "Bytes received by reliable reads", "transport", reads),
        ("dropped", "Datagrams and requests refused, by reason", "reason", sorted(counts.dropped.items())),
    ):
        yield labelled_counter(name, text, label, values)
    yield from counters(
        (
            "fill_packets_failed",
            "Segments for the switch's memory that the network did not take",
            counts.fill_packets_failed,
        ),
        ("cast_batches", "Times that casts were taken in, many at a time", counts.cast_batches_received),
        (
            "read_sent_bytes",
            "Bytes sent for peers' reads over TCP; what they read by RDMA no holder sees",
            counts.read_bytes_sent,
        ),
        (
            "rdma_retransmissions",
            "Retransmissions that the NIC counted while reads were in flight",
            counts.read_retransmissions,
        ),
        ("rails_left", "Rails to a peer that were left because nothing came by them", counts.rails_left),
        ("reads_failed", "Reliable reads that did not end well", counts.reads_failed),
        (
            "cast_overflows",
            "Cast segments that the kernel dropped because the receive buffer was full",
            counts.cast_receive_overflows,
        ),
    )


def _merging_figures(claims: Claims, waits: Waits) -> Iterator[Metric]:
    """What is being computed, and those who wait for it."""
    made, waited = claims.counts, waits.counts
    yield from gauges(
        ("claims", "Chunks that engines compute at this moment, here or elsewhere", claims.claims_count),
        ("waiting_fetches", "Fetches that wait for something to be computed", waits.waiting_count),
    )
    yield from counters(
        ("claims_made", "Chunks that engines of this node claimed", made.made),
        ("claims_kept", "Of these, chunks that were put", made.kept),
        ("claims_refused", "Claims beyond what an engine may have", made.refused),
        ("waits", "Fetches that waited for something to be computed", waited.begun),
        ("wait_chunks", "Chunks that came to fetches that had waited for them", waited.chunks),
        ("wait_seconds", "Time that these fetches took", waited.waited_s),
        ("wait_saved_seconds", "What their engines would have taken longer, computing", waited.saved_s),
    )
    ended = [(why.value, made.ended[why]) for why in Freed]
    freed = [(why.value, waited.freed[why]) for why in Freed]
    yield labelled_counter("claims_ended", "Claims of this node that were not kept, by why", "reason", ended)
    text = "Fetches that did not get all that they waited for, by why"
    yield labelled_counter("waits_freed", text, "reason", freed)


def _tenant_figures(tenants: Tenants, tenancy: Tenancy) -> Iterator[Metric]:
    """Of all tenants that are configured, connected, or have chunks."""
    names = list(tenants.names)
    for name, text, gauge in (
        ("tenant_used_bytes", "Pool bytes of a tenant's chunks", tenants.used_bytes.__getitem__),
        ("tenant_held_bytes", "Of these, what cannot be evicted now", tenants.held_bytes.__getitem__),
        ("tenant_share_bytes", "A tenant's share of the pool", tenants.share_bytes),
        ("tenant_connections", "Connections of a tenant's engines", tenants.engines_count),
    ):
        yield labelled_gauge(name, text, "tenant", [(tenant, gauge(tenant)) for tenant in names])
    for name, text, count in (
        (
            "tenant_refused",
            "Times that a tenant found no room, or held its share already",
            tenants.refused_count.__getitem__,
        ),
        ("tenant_delayed", "Times that requests waited for the tenant's pace", tenancy.delayed_count),
    ):
        yield labelled_counter(name, text, "tenant", [(tenant, count(tenant)) for tenant in names])
