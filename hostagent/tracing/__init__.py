"""Traces of fetches (OpenTelemetry). `timeline` finds out what happened when, `spans` makes spans of it, `export` sends
them.

Off unless `tracing.endpoint` is set; OpenTelemetry's packages are imported only then.

The `tracing` section of the agent's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from hostagent.core import effects, events
from kvdaemon.errors import CannotRunError
from kvproto.session.parameters import ReaderParameters


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Where traces of fetches go, and how many."""

    endpoint: str
    """URL of an OTLP collector (gRPC): http://HOST:PORT, or https:// for TLS."""
    sample_ratio: float = 0.01
    """Share of the fetches without a trace context that are traced, 0 to 1. With one, its sampled flag decides."""


class Tracer(Protocol):
    """Sees each event of the agent's core, and its effects (`hostagent.tracing.spans.FetchTracer`)."""

    def begun(self, event: events.Event, now_ns: int) -> events.Event:
        """Called before the core handles an event; returns the event for the core."""

    def saw(self, event: events.Event, made: Iterable[effects.Effect], now_ns: int, at: ReaderParameters) -> None:
        """Called after the core has handled an event, with its effects; `at`: this node's place in the fabric."""


class Guarded:
    """A tracer whose bugs cost traces, never a fetch: the first goes to `bug(error)` and ends the tracing."""

    def __init__(self, tracer: Tracer, bug: Callable[[Exception], None]) -> None:
        self._tracer: Tracer | None = tracer
        self._bug = bug

    def begun(self, event: events.Event, now_ns: int) -> events.Event:
        """As `Tracer.begun`."""
        if self._tracer is None:
            return event
        try:
            return self._tracer.begun(event, now_ns)
        except Exception as error:  # noqa: BLE001 - goes to `bug`
            self._give_up(error)
            return event

    def saw(self, event: events.Event, made: Iterable[effects.Effect], now_ns: int, at: ReaderParameters) -> None:
        """As `Tracer.saw`."""
        if self._tracer is None:
            return
        try:
            self._tracer.saw(event, made, now_ns, at)
        except Exception as error:  # noqa: BLE001 - goes to the handler of bugs
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._tracer = None
        self._bug(error)


class TraceExport(Protocol):
    """Sends traces (`hostagent.tracing.export.Traces`)."""

    async def close(self) -> None:
        """Send what is left, within seconds."""


def tracing(config: TracingConfig, node: str) -> tuple[Tracer, TraceExport]:
    """What makes traces of a node's fetches, and what sends them. Raises CannotRunError without OpenTelemetry."""
    try:
        from hostagent.tracing.export import Traces
        from hostagent.tracing.spans import FetchTracer
    except ModuleNotFoundError as error:
        raise CannotRunError(
            f"tracing.endpoint needs OpenTelemetry ({error.name} is missing): pip install 'kvcast[otel]'"
        ) from error
    traces = Traces(config, node)
    return FetchTracer(traces.provider), traces
