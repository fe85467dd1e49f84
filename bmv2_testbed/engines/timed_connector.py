"""KvcastConnector that measures what it costs the engine's own thread: seconds and CPU seconds in its calls."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kvclient.engines.vllm.connector import KvcastConnector

TIMED = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "take_events",
    "get_kv_connector_stats",
    "start_load_kv",
    "wait_for_save",
    "get_transfer_results",
    "build_connector_worker_meta",
)


@dataclass(slots=True)
class Calls:
    """Of one kind."""

    count: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


class Spent:
    """Totals of both halves, which share the engine's thread here, by call."""

    calls: ClassVar[dict[str, Calls]] = {}

    @classmethod
    def timed(cls, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, counted."""
        mine = cls.calls[name] = Calls()

        @functools.wraps(call)
        def counted(*arguments: Any, **named: Any) -> Any:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                cpu_end_s, wall_end_s = time.thread_time(), time.perf_counter()
                # To read the clock is a system call of a microsecond or two, as much as most of these calls take.
                reading_s = time.thread_time() - cpu_end_s
                mine.count += 1
                mine.wall_s += wall_end_s - wall_s
                mine.cpu_s += cpu_end_s - cpu_s - reading_s

        return counted


class TimedConnector(KvcastConnector):
    """The same connector, counted."""


for _name in TIMED:
    setattr(TimedConnector, _name, Spent.timed(_name, getattr(KvcastConnector, _name)))
