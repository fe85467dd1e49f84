"""Runs the timer of a state machine on the event loop: one handle, moved only when it must fire earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class MachineTimer:
    """Calls `fire` at or after the time given last; being early is allowed and costs one call."""

    __slots__ = ("_due_ns", "_fire", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self._due_ns = 0

    def set(self, due_ns: int | None, now_ns: int) -> None:
        """When the machine wants to be called next; None: not at all."""
        if due_ns is None:
            return
        if self._handle is not None:
            if self._due_ns <= due_ns:
                return
            self._handle.cancel()
        self._due_ns = due_ns
        self._handle = self._loop.call_later(max(0, due_ns - now_ns) / 1e9, self._run)

    def cancel(self) -> None:
        """Never again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self._fire()
