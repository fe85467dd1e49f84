"""What this node has queued for its readers: told to the controller when it has changed much, at a bounded rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hostagent import limits
from hostagent.core import effects
from hostagent.core.node import Node
from kvpolicy.tiers.holder_load import IDLE, HolderLoad

_INTERVAL_NS = int(limits.LOAD_INTERVAL_S * 1e9)
_AGAIN_NS = int(limits.LOAD_AGAIN_S * 1e9)


class ServedReads(Protocol):
    """The reliable reads that the shell serves. It keeps the figures, the core looks at them."""

    @property
    def reads_queued_bytes(self) -> int:
        """Bytes that peers have asked for and that have not left."""
        ...

    @property
    def readers_served(self) -> int:
        """Peers that wait for them."""
        ...


class NoReads:
    """Of a shell that serves none."""

    reads_queued_bytes = 0
    readers_served = 0


class LoadReports:
    """Looks at the queue while there is one; silent otherwise."""

    def __init__(self, node: Node, load: Callable[[], HolderLoad], connected: Callable[[], bool]) -> None:
        """`load()`: what is queued now; `connected()`: the controller listens."""
        self._clock = node.clock
        self._emit = node.emit
        self._load = load
        self._connected = connected
        self._told = IDLE
        self._wanted = True
        self._told_ns = -_AGAIN_NS
        self._alarm = node.alarms.add(self._look)

    def queued(self) -> None:
        """Something was added to the queue."""
        if self._alarm.due_ns is None and self._wanted and self._connected():
            self._alarm.set(max(self._clock.now_ns, self._told_ns + _INTERVAL_NS))

    def attached(self, *, wanted: bool) -> None:
        """A controller that knows nothing of the queue listens, and wants to."""
        self._told, self._wanted = IDLE, wanted
        if self._load().queued_bytes:
            self.queued()

    def close(self) -> None:
        """Tell nothing any more."""
        self._alarm.cancel()

    def _look(self) -> None:
        self._alarm.cancel()
        if not self._connected():
            return
        load, now_ns = self._load(), self._clock.now_ns
        stale = load.queued_bytes > 0 and now_ns - self._told_ns >= _AGAIN_NS
        if load.differs(self._told) or stale:
            self._told, self._told_ns = load, now_ns
            self._emit(effects.ReportLoad(load))
        if load.queued_bytes or self._told.queued_bytes:
            self._alarm.set(now_ns + _INTERVAL_NS)
