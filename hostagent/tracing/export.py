"""Sends spans to a collector by OTLP, from a thread of its own. A collector that is away costs spans, never a fetch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from hostagent import limits
from hostagent.tracing import TracingConfig
from kvproto import __version__

log = logging.getLogger(__name__)


class OtlpExporter(SpanExporter):
    """OTLP over gRPC. Logs one line when spans begin to be lost, and one when they are delivered again."""

    def __init__(self, endpoint: str, send_s: float = limits.TRACES_SEND_S) -> None:
        """`endpoint`: http://HOST:PORT, or https:// with the system's certificates (OTEL_EXPORTER_OTLP_CERTIFICATE).
        `send_s`: for how long a batch is tried."""
        # The libraries log a line for every batch and every try; this class logs only changes.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._endpoint = endpoint
        self._inner = OTLPSpanExporter(endpoint=endpoint, timeout=send_s)
        self._losing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; blocks for `send_s` at most."""
        result = self._inner.export(spans)
        lost = result is not SpanExportResult.SUCCESS
        if lost and not self._losing:
            log.warning("no collector answers at %s: traces are lost until one does", self._endpoint)
        elif self._losing and not lost:
            log.info("the collector at %s takes traces again", self._endpoint)
        self._losing = lost
        return result

    def shutdown(self) -> None:
        """Give up what is being sent."""
        self._inner.shutdown()


class Traces:
    """The way of one agent's spans to the collector."""

    def __init__(self, config: TracingConfig, node: str) -> None:
        self._exporter = OtlpExporter(config.endpoint)
        self.provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
            resource=Resource.create(
                {
                    "service.name": "kvcast-agent",
                    "service.version": __version__,
                    "service.instance.id": node,
                    "host.name": node,
                }
            ),
            shutdown_on_exit=False,
        )
        self.provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=limits.TRACES_QUEUED_MAX,
                schedule_delay_millis=limits.TRACES_DELAY_S * 1e3,
            )
        )

    async def close(self) -> None:
        """Send what is left, for TRACES_FLUSH_S at most."""
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self.provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop may have ended by then
                loop.call_soon_threadsafe(flushed.set)

        threading.Thread(target=flush, name="traces", daemon=True).start()
        try:
            async with asyncio.timeout(limits.TRACES_FLUSH_S):
                await flushed.wait()
        except TimeoutError:
            self._exporter.shutdown()
