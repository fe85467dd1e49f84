"""What the agent tells Prometheus. Counters that others keep anyway are read when somebody asks, not counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostagent.api.messages import ChunkSource, Status
from hostagent.disk.store import DiskState, DiskStore
from hostagent.pool.chunks import ChunkPool
from hostagent.tiering import Tiering
from hostagent.transport.base import TransportCounters
from kvproto.tiers.gate import Choice, Gate
from kvproto.value.costs import Source

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
        for source in ChunkSource:
            self.fetched_chunks.labels(source.name.lower())
            self.fetched_bytes.labels(source.name.lower())
        for outcome in (Status.OK, Status.NOT_FOUND, Status.DEADLINE, Status.GATE, Status.UNAVAILABLE):
            self.fetches.labels(outcome.name.lower())

    def watch(self, pool: ChunkPool, transport: TransportCounters, controller_connected: Callable[[], bool]) -> None:
        """Also report what pool and transport count by themselves."""
        self.registry.register(_Watched(pool, transport, controller_connected))

    def watch_gate(self, gate: Gate) -> None:
        """Also report what the gate decides, and what that cost."""
        self.registry.register(_WatchedGate(gate))

    def watch_disk(self, disk: DiskStore, tiering: Tiering) -> None:
        """Also report the disk tier and the traffic to and from it."""
        self.registry.register(_WatchedDisk(disk, tiering))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


class _WatchedGate(Collector):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time."""
        return iter(())

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
        rates = GaugeMetricFamily(f"{PREFIX}_gate_rate_bytes_per_s", "Learned rates", labels=["source"])
        overheads = GaugeMetricFamily(f"{PREFIX}_gate_overhead_seconds", "Learned overheads", labels=["source"])
        for source in (Source.REMOTE_DRAM, Source.SWITCH, Source.LOCAL_DISK, Source.REMOTE_DISK):
            cost = self._gate.costs.cost(source)
            rates.add_metric([source.value], cost.rate_bytes_per_s)
            overheads.add_metric([source.value], cost.overhead_s)
        yield rates
        yield overheads
        yield _gauge("gate_under_way_bytes", "Asked of disk and link, not ended", self._gate.under_way_bytes)


class _WatchedDisk(Collector):
    def __init__(self, disk: DiskStore, tiering: Tiering) -> None:
        self._disk = disk
        self._tiering = tiering

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        disk, counters = self._disk, self._disk.counters
        states = GaugeMetricFamily(f"{PREFIX}_disk_state", "1 for the state of the disk tier", labels=["state"])
        for state in DiskState:
            states.add_metric([state.value], float(disk.state is state))
        yield states
        usage = disk.pool.usage()
        size = GaugeMetricFamily(f"{PREFIX}_disk_bytes", "Bytes of the disk tier by state", labels=["state"])
        for name, value in (("size", usage.size_bytes), ("free", usage.free_bytes), ("ready", usage.ready_bytes)):
            size.add_metric([name], value)
        yield size
        yield _gauge("disk_chunks", "Chunks that can be loaded", len(disk.stored_chunks()))
        yield _gauge("disk_unsaved_chunks", "Chunks in the pool that a crash would lose", self._tiering.unsaved_count)
        yield _gauge("disk_restored_chunks", "Chunks found at start", counters.restored_chunks)
        yield _counter("disk_written_bytes", "Chunks copied to disk", counters.written_bytes)
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
        yield from self._lanes()

    def _lanes(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(f"{PREFIX}_background_waiting", "Background work that waits", labels=["lane"])
        taken = CounterMetricFamily(f"{PREFIX}_background_started", "Background work begun", labels=["lane"])
        forced = CounterMetricFamily(
            f"{PREFIX}_background_forced", "Begun although an engine waited, after long patience", labels=["lane"]
        )
        waited = CounterMetricFamily(f"{PREFIX}_background_waited_seconds", "From offer to start", labels=["lane"])
        for name, lane in (("write", self._tiering.writes), ("promote", self._tiering.promotions)):
            waiting.add_metric([name], len(lane))
            taken.add_metric([name], lane.counts.taken)
            forced.add_metric([name], lane.counts.forced)
            waited.add_metric([name], lane.counts.waited_ns / 1e9)
        yield from (waiting, taken, forced, waited)


class _Watched(Collector):
    def __init__(self, pool: ChunkPool, transport: TransportCounters, controller_connected: Callable[[], bool]) -> None:
        self._pool = pool
        self._transport = transport
        self._controller_connected = controller_connected

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: the names below cannot collide."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        yield from self._pool_metrics()
        yield from self._transport_metrics()
        connected = GaugeMetricFamily(f"{PREFIX}_controller_connected", "1 while the controller's stream is open")
        connected.add_metric([], float(self._controller_connected()))
        yield connected

    def _pool_metrics(self) -> Iterator[Metric]:
        usage = self._pool.usage()
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
            f"{PREFIX}_pool_pins", "Pins on chunks: leases, sends, reads", value=self._pool.pins_count
        )
        yield CounterMetricFamily(
            f"{PREFIX}_pool_evictions", "Chunks evicted to make room", value=self._pool.evicted_count
        )

    def _transport_metrics(self) -> Iterator[Metric]:
        counters = self._transport
        casts = CounterMetricFamily(f"{PREFIX}_cast_packets", "Cast segments", labels=["direction"])
        casts.add_metric(["received"], counters.cast_packets_received)
        casts.add_metric(["received_from_switch"], counters.cast_packets_from_switch)
        casts.add_metric(["sent"], counters.cast_packets_sent)
        casts.add_metric(["filled"], counters.fill_packets_sent)
        yield casts
        control = CounterMetricFamily(f"{PREFIX}_control_datagrams", "Control datagrams", labels=["direction"])
        control.add_metric(["received"], counters.control_received)
        control.add_metric(["sent"], counters.control_sent)
        yield control
        reads = CounterMetricFamily(f"{PREFIX}_read_bytes", "Bytes of reliable reads", labels=["direction"])
        reads.add_metric(["received"], counters.read_bytes_received)
        reads.add_metric(["sent"], counters.read_bytes_sent)
        yield reads
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
