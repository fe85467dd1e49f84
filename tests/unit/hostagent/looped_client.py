"""Clients of an event loop, called from outside of it as an AgentClient is."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

from kvclient.asynchronous import AsyncAgentClient, AsyncFetchStream
from kvclient.client import AgentClient, Fetched, Found

DEADLINE_S = 60.0


class LoopedClients:
    """With a loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        self._clients: list[AgentClient] = []

    def connect(self, path: str, **options: float) -> AgentClient:
        client = _OnLoop(self._loop, None).run(AsyncAgentClient.connected, path, **options)
        self._clients.append(cast("AgentClient", client))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class _OnLoop:
    """Something that belongs to a loop: its methods run there, and what they return belongs to it, too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thing: Any) -> None:
        self._loop = loop
        self._thing = thing

    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def work() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        result = asyncio.run_coroutine_threadsafe(work(), self._loop).result(DEADLINE_S)
        belongs = isinstance(result, AsyncAgentClient | AsyncFetchStream | Fetched | Found)
        return _OnLoop(self._loop, result) if belongs else result

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        return (lambda *args, **options: self.run(value, *args, **options)) if callable(value) else value

    def __enter__(self) -> _OnLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._thing.release)

    def __iter__(self) -> Iterator[memoryview]:
        chunks = aiter(self._thing)
        while True:
            try:
                yield self.run(anext, chunks)
            except StopAsyncIteration:
                return
