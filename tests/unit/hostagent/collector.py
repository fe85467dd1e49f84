"""A real OTLP collector on loopback, as small as one can be: it keeps what it is sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

DEADLINE_S = 60.0


class Collector(TraceServiceServicer):
    """Spans by service, in the order in which they came."""

    def __init__(self) -> None:
        self.port = 0
        self.resources: list[dict[str, str]] = []
        self.spans: list[Span] = []
        self._news = threading.Condition()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        with self._news:
            for resource in request.resource_spans:
                self.resources.append({one.key: one.value.string_value for one in resource.resource.attributes})
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._news.notify_all()
        return ExportTraceServiceResponse()

    def until(self, condition: Callable[[list[Span]], bool]) -> list[Span]:
        """Wait until the spans so far are enough."""
        with self._news:
            assert self._news.wait_for(lambda: condition(self.spans), DEADLINE_S), [one.name for one in self.spans]
            return list(self.spans)


def attributes(span: Span) -> dict[str, Any]:
    """Attributes of a span as it travelled."""
    found: dict[str, Any] = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        assert kind is not None
        value = getattr(one.value, kind)
        found[one.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found


@contextlib.contextmanager
def collecting(port: int = 0, path: Path | None = None) -> Iterator[Collector]:
    """A collector that listens; `port` 0: any free one; `path`: of a socket where it listens, too."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.port = server.add_insecure_port(f"127.0.0.1:{port}")
    if path is not None:
        server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
