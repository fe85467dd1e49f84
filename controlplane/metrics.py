"""What the controller shows to Prometheus, read from the core at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.core.core import Core
from controlplane.core.election import Standing
from controlplane.core.nodes import NodeState
from controlplane.core.switch.chunk_states import ChunkState
from controlplane.core.switch.target import OrbitTraffic, SwitchCounters

_PREFIX = "kvcast_controller_"


class CoreCollector(Collector):
    """Turns the core's state into metric families."""

    def __init__(
        self,
        core: Core,
        switch_counters: Callable[[], SwitchCounters | None],
        certificate_ends: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._core = core
        self._switch_counters = switch_counters
        self._certificate_ends = certificate_ends

    def collect(self) -> Iterator[Metric]:
        """All families, read at this moment."""
        yield from self._directory()
        yield from self._switch()
        yield from self._accounting()
        yield from self._pushes()
        yield from self._leadership()
        ends = self._certificate_ends()
        if ends is not None:
            yield _gauge("certificate_expires_timestamp_seconds", "When this controller's certificate expires", ends)

    def _directory(self) -> Iterator[Metric]:
        core = self._core
        yield _gauge("chunks", "Distinct chunks in the directory", len(core.directory))
        yield _gauge("copies", "Copies in hosts' pools", core.directory.copies)
        yield _gauge("chunk_bytes", "Bytes of distinct chunks", core.directory.size_bytes)
        nodes = GaugeMetricFamily(_PREFIX + "nodes", "Agents by state", labels=["state"])
        states = [node.state for node in core.nodes]
        for state in NodeState:
            nodes.add_metric([state.value], states.count(state))
        yield nodes
        problems = sum(bool(node.port_problem) for node in core.nodes if node.attached)
        yield _gauge(
            "nodes_without_port", "Attached agents that are not seen, or not at the port they should have", problems
        )
        unreached = sum(node.unreached for node in core.nodes if node.attached)
        yield _gauge("nodes_unreached", "Attached agents that others cannot reach on the data network", unreached)
        yield _gauge("tasks", "Tasks given to agents and not ended", len(core.tasks))

    def _leadership(self) -> Iterator[Metric]:
        leadership = self._core.leadership
        standings = GaugeMetricFamily(_PREFIX + "leadership", "1 for how this controller stands", labels=["standing"])
        for standing in Standing:
            standings.add_metric([standing.value], int(leadership.standing is standing))
        yield standings
        yield _gauge("leads", "1 while this controller leads", int(leadership.leads))
        yield _gauge("epoch", "Of its leadership, or of its last one", leadership.epoch)
        yield _counter("leadership_lapses", "Times its lease has run out", leadership.lapses_count)

    def _switch(self) -> Iterator[Metric]:
        core = self._core
        yield _gauge("switch_present", "1 while the switch runs our program as programmed", int(core.link.present))
        yield _gauge("switch_slots", "Slots of the switch", core.switch_cache.slots.capacity)
        yield _gauge("switch_slots_used", "Slots with a chunk", core.switch_cache.slots.used_count)
        chunks = GaugeMetricFamily(_PREFIX + "switch_chunks", "Chunks in the switch by state", labels=["state"])
        for state in ChunkState:
            if state is not ChunkState.ABSENT:
                chunks.add_metric([state.value], core.switch_cache.count(state))
        yield chunks
        yield _counter("switch_write_errors", "Updates that the switch refused", core.programmer.write_errors)
        counters = self._switch_counters()
        if counters is not None:
            drops = CounterMetricFamily(
                _PREFIX + "switch_drops", "Packets dropped by the data plane", labels=["reason"]
            )
            for reason, packets in sorted(counters.drops.items()):
                drops.add_metric([reason], packets)
            yield drops
            yield from _orbit(counters.orbit)

    def _accounting(self) -> Iterator[Metric]:
        accounting = self._core.accounting
        yield _counter(
            "bytes_kept_off_uplinks",
            "Estimated bytes that holders did not have to send because of casts and the switch's memory",
            accounting.bytes_kept_off_uplinks,
        )
        yield _labelled("fetched_chunks", "Chunks that nodes fetched", "source", accounting.fetched_chunks)
        yield _labelled("fetched_bytes", "Bytes that nodes fetched", "source", accounting.fetched_bytes)
        yield _counter("waited_seconds", "Time that fetches took, all together", accounting.waited_us / 1e6)
        yield _labelled("messages", "Messages of the control channel", "direction", accounting.messages)
        yield _labelled("message_bytes", "Bytes of the control channel", "direction", accounting.message_bytes)
        yield _counter("switch_updates", "P4Runtime updates sent", accounting.switch_updates)
        yield _counter("switch_reads", "Times the switch was read back", accounting.switch_reads)
        claims = self._core.claims
        yield _gauge("claims", "Chunks that engines say they compute at this moment", claims.claims_count)
        yield _counter("claims_refused", "Claims of nodes that claim more than they may", claims.refused_count)
        decisions = self._core.decisions
        yield _labelled("decisions", "What was decided or happened, by kind", "kind", decisions)

    def _pushes(self) -> Iterator[Metric]:
        policy = self._core.pushes.policy
        use = GaugeMetricFamily(
            _PREFIX + "push_use", "Share of copies expected to be wanted that were, by kind", labels=["kind"]
        )
        for kind, share in policy.uses().items():
            use.add_metric([kind], share)
        yield use
        counts = policy.counts
        yield _counter("push_candidates", "Chunks fetched remotely a second time in a while", counts.candidates)
        copies = {"pushed": counts.pushed_copies, "withheld": counts.withheld_copies}
        yield _labelled("push_copies", "Copies that a push would bring, by what became of them", "what", copies)
        yield _counter(
            "push_withheld_wanted_copies", "Copies withheld that were wanted after all", counts.withheld_used_copies
        )
        yield _counter("push_sent_bytes", "Bytes of copies pushed", counts.pushed_bytes)
        yield _counter("push_used_bytes", "Bytes of copies pushed that were wanted", counts.used_bytes)


def _orbit(traffic: OrbitTraffic | None) -> Iterator[Metric]:
    """What circulates in the switch, where something does."""
    if traffic is None:
        return
    yield _labelled("switch_orbit_packets", "Packets at the orbit of the switch", "event", dict(traffic.packets))
    text = "that entered the orbit and have not left it; what was lost on its round is still in it"
    yield _gauge("switch_circulating_packets", f"Segments {text}", traffic.circulating_packets)
    yield _gauge("switch_circulating_bytes", f"Bytes {text}", traffic.circulating_bytes)


def metrics_registry(
    core: Core,
    switch_counters: Callable[[], SwitchCounters | None],
    certificate_ends: Callable[[], float | None] = lambda: None,
) -> CollectorRegistry:
    """For /metrics. `certificate_ends`: when it expires, in seconds since 1970; None: there is no certificate."""
    registry = CollectorRegistry()
    registry.register(CoreCollector(core, switch_counters, certificate_ends))
    return registry


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _labelled(name: str, text: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for key, count in sorted(counts.items()):
        family.add_metric([key], count)
    return family
