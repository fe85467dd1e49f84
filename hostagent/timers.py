"""Runs the timer of a state machine on the event loop: one handle, moved only when it must fire earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_NEVER_NS = 1 << 63
_TICK_NS = 1_000_000
"""epoll and libuv count in milliseconds. What is rounded down would be called again and again until it is due."""


class MachineTimer:
    """Calls `fire` at or after the time given last; being early is allowed and costs one call."""

    __slots__ = ("_fire", "_handle", "_loop", "due_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.Handle | None = None
        self.due_ns = _NEVER_NS
        """When it fires; a later time need not be set."""

    def set(self, due_ns: int, now_ns: int) -> None:
        """When the machine wants to be called next."""
        if self.due_ns <= due_ns:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.due_ns = due_ns
        if due_ns <= now_ns:
            self._handle = self._loop.call_soon(self._run)
        else:
            self._handle = self._loop.call_later(-((now_ns - due_ns) // _TICK_NS) * _TICK_NS / 1e9, self._run)

    def cancel(self) -> None:
        """Never again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self.due_ns = _NEVER_NS
        self._fire()
