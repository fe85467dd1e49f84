"""Makes OpenTelemetry spans of the timelines of fetches. The only module that knows both.

Attributes follow OpenTelemetry's semantic conventions where there are any (`server.address`, `error.type`), and begin
with `kvcast.` where there are none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from hostagent.core import effects, events
from hostagent.tracing.timeline import FetchWatch, Phase, Step, Timeline
from kvclient.messages import Status
from kvproto import __version__
from kvproto.session.parameters import ReaderParameters

_FAILED = frozenset({Status.DEADLINE, Status.UNAVAILABLE, Status.POOL_FULL, Status.BUSY, Status.MALFORMED})
"""Outcomes that are errors. GATE, NOT_FOUND and CANCELLED are decisions."""
_OF_READS = (Step.READ, Step.REPAIR)


@dataclass(frozen=True, slots=True)
class _Root:
    """The span of a whole fetch."""

    span: Span
    offset_ns: int
    """From the agent's clock, which is monotonic, to the time of day; one for all spans of a fetch."""


class FetchTracer:
    """Traces one agent's fetches: call `begun` before the core handles an event, `saw` after it."""

    def __init__(self, provider: TracerProvider, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`clock_ns`: the agent's."""
        self._clock_ns = clock_ns
        self._tracer = provider.get_tracer("kvcast.agent", __version__)
        self._contexts = TraceContextTextMapPropagator()
        self._watch = FetchWatch(self._answered, self._copied)
        self._spans: dict[Timeline, _Root] = {}
        """Spans of fetches under way, and of answered ones until the engine gives the lease back."""

    def begun(self, event: events.Event, now_ns: int) -> events.Event:
        """Begin a trace if the event is a fetch that is sampled; returns the event, marked if so."""
        if not isinstance(event, events.ChunksRequested):
            return event
        parent = self._contexts.extract({"traceparent": event.traceparent}) if event.traceparent else None
        offset_ns = time.time_ns() - self._clock_ns()
        span = self._tracer.start_span("fetch", parent, kind=SpanKind.SERVER, start_time=now_ns + offset_ns)
        if not span.is_recording():
            return event
        timeline = self._watch.begin(event, now_ns)
        if timeline is None:
            span.end()
            return event
        self._spans[timeline] = _Root(span, offset_ns)
        return replace(event, traced=True)

    def saw(self, event: events.Event, made: Iterable[effects.Effect], now_ns: int, at: ReaderParameters) -> None:
        """What the core made of an event."""
        done_ns = self._clock_ns() if isinstance(event, events.ChunksRequested) else now_ns
        self._watch.saw(event, made, now_ns, done_ns, at)

    # ------------------------------------------------------------------ spans

    def _answered(self, timeline: Timeline) -> None:
        root = self._spans[timeline]
        if not timeline.chunks:
            del self._spans[timeline]
        span = root.span
        span.set_attributes(_of_fetch(timeline))
        for at_ns, name, details in timeline.notes:
            span.add_event(name, details, at_ns + root.offset_ns)
        if timeline.status in _FAILED:
            span.set_attribute("error.type", timeline.status.name)
            span.set_status(StatusCode.ERROR, f"{len(timeline.chunks)} of {len(timeline.keys)} chunks")
        self._decided(root, timeline)
        for phase in timeline.phases.values():
            kind = SpanKind.CLIENT if phase.step in _OF_READS else SpanKind.INTERNAL
            self._child(root, phase.step, phase.started_ns, phase.ended_ns, _of_phase(phase), kind)
        span.end(timeline.ended_ns + root.offset_ns)

    def _decided(self, root: _Root, timeline: Timeline) -> None:
        plan = timeline.plan
        if plan is None:
            return
        routes = Counter(route.value for _, _, route in plan.to_come)
        found: dict[str, AttributeValue] = {
            "kvcast.chunks": len(plan.here) + len(plan.to_come) + len(plan.awaited),
            "kvcast.chunks.local": len(plan.here),
            **{f"kvcast.chunks.{route}": count for route, count in sorted(routes.items())},
        }
        if plan.awaited:
            found["kvcast.chunks.computing"] = len(plan.awaited)
        self._child(root, Step.LOOKUP, timeline.started_ns, timeline.decided_ns, found)
        decided: dict[str, AttributeValue] = {
            "kvcast.choice": plan.choice.value,
            "kvcast.expected_seconds": plan.expected_s,
        }
        if plan.recompute_s is not None:
            decided["kvcast.recompute_seconds"] = plan.recompute_s
        if plan.stopped is not Status.OK:
            decided["kvcast.reason"] = plan.stopped.name
        self._child(root, Step.GATE, timeline.started_ns, timeline.decided_ns, decided)

    def _copied(self, timeline: Timeline, now_ns: int) -> None:
        root = self._spans.pop(timeline, None)
        if root is not None:
            brought: dict[str, AttributeValue] = {
                "kvcast.chunks": len(timeline.chunks),
                "kvcast.bytes": sum(chunk.size_bytes for chunk in timeline.chunks),
            }
            self._child(root, Step.COPY, timeline.ended_ns, now_ns, brought)

    def _child(
        self,
        root: _Root,
        step: Step,
        started_ns: int,
        ended_ns: int,
        attributes: dict[str, AttributeValue],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        context, offset_ns = set_span_in_context(root.span), root.offset_ns
        span = self._tracer.start_span(step.value, context, kind, attributes, start_time=started_ns + offset_ns)
        span.end(ended_ns + offset_ns)


def _of_fetch(timeline: Timeline) -> dict[str, AttributeValue]:
    sources = Counter(chunk.source.name.lower() for chunk in timeline.chunks)
    return {
        "kvcast.outcome": timeline.status.name,
        "kvcast.chunks.asked": len(timeline.keys),
        "kvcast.chunks": len(timeline.chunks),
        "kvcast.bytes": sum(chunk.size_bytes for chunk in timeline.chunks),
        "kvcast.source": sorted(sources),
        **{f"kvcast.chunks.{source}": count for source, count in sorted(sources.items())},
    }


def _of_phase(phase: Phase) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {"kvcast.chunks": len(phase.chunks)}
    if phase.size_bytes:
        attributes["kvcast.bytes"] = phase.size_bytes
    if phase.segments_count:
        attributes["kvcast.segments"] = phase.segments_count
        attributes["kvcast.segments.switch"] = phase.from_switch_count
        switch = "switch" if phase.from_switch_count else None
        holder = "holder" if phase.from_switch_count < phase.segments_count else None
        attributes["kvcast.source"] = [source for source in (holder, switch) if source is not None]
    if phase.under_way:
        attributes["kvcast.unfinished"] = len(phase.under_way)
    if phase.failed_count:
        attributes["kvcast.failed"] = phase.failed_count
    if phase.node:
        attributes["kvcast.node"] = phase.node
        host, _, port = phase.endpoint.rpartition(":")
        attributes["server.address"] = host
        attributes["server.port"] = int(port)
    return attributes
